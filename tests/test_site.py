"""The documentation site has every page, loads nothing from other origins, and can be searched."""

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[1]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a broken link, or a page that is not listed, fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    config = ROOT / "site" / "mkdocs.yml"
    built = subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


class Loaded(HTMLParser):
    """Collects what a page loads, and where it leads.

    Attributes:
        loaded: addresses of scripts, style sheets, images and frames.
        links: addresses of links.
    """

    def __init__(self, page):
        super().__init__()
        self.loaded, self.links = [], []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href") or "")
        elif "src" in given:
            self.loaded.append(given["src"])


def test_every_page_of_the_documentation_is_in_the_site_and_its_navigation(site):
    navigation = set(Loaded(site / "index.html").links)
    for page in ROOT.glob("docs/**/*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        path = "pages" if path == "README" else path.removesuffix("/README")
        assert (site / path / "index.html").is_file(), path
        assert f"{path}/" in navigation, path


def test_no_page_loads_anything_from_another_origin(site):
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 100
    for page in pages:
        loaded = Loaded(page).loaded
        assert loaded
        assert [each for each in loaded if re.match(r"(\w+:)?//", each)] == [], page
        assert 'data-md-component="source"' not in page.read_text()  # it asks a forge for stars


def test_links_to_files_outside_the_documentation_lead_to_the_repository(site):
    links = Loaded(site / "pages" / "index.html").links
    assert "https://github.com/vlmkit/vlmkit/blob/main/CONTRIBUTING.md" in links


@pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="Chromium is not installed")
def test_the_search_finds_a_page_by_a_word_of_its_text(site):
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            browser.get(f"http://127.0.0.1:{server.server_port}/?q=drain_timeout_s")
            found = WebDriverWait(browser, 120).until(
                lambda each: each.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
            )
            addresses = [each.get_attribute("href") for each in found]
        finally:
            browser.quit()
            server.shutdown()
    assert any("/how-to/run-a-service/" in each for each in addresses)
