"""A headless Chromium, driven by Selenium, and what tests do on the page of a server."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from page_server import PageServer
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
LOOPBACK_ONLY = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--no-proxy-server", f"--host-resolver-rules={LOOPBACK_ONLY}",
]  # fmt: skip
TIMEOUT_S = 120.0
WIDE, NARROW, USUAL = (1600, 1000), (360, 740), (1200, 900)
Size = tuple[int, int]


@contextmanager
def started_browser(folder: Path) -> Iterator[Any]:
    """Run a browser with a new profile; it reaches loopback addresses alone."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_script_timeout(TIMEOUT_S)
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of a server in a browser.

    Args:
        driver: the browser.
        server: the server.
        size: width and height in pixels.
        host: the name by which the browser reaches the server.
    """

    def __init__(
        self, driver: Any, server: PageServer, size: Size = USUAL, host: str = "127.0.0.1"
    ) -> None:
        self.driver, self.server = driver, server
        self.width, height = size
        self.resize(height)
        driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(f"http://{host}:{server.port}/")
        self.wait(self.is_connected)

    def resize(self, height: int) -> None:
        """Make the screen higher or lower."""
        metrics = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def wait(self, is_true: Callable[[], Any]) -> Any:
        """Wait until something is true, and return it; the page may change meanwhile."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            with suppress(StaleElementReferenceException):
                if found := is_true():
                    return found
            assert time.monotonic() < deadline_s, self.text
            time.sleep(0.02)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script with arguments, and return its result; it may be that of a promise."""
        return self.driver.execute_script(script, *arguments)

    @property
    def text(self) -> str:
        return self.find("body").text

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def named(self, name: str, within: str = "") -> WebElement:
        """Return the last shown button with a name, within elements that a selector finds."""
        buttons = self.all(f"{within} button")
        found = [each for each in buttons if each.is_displayed() and each.accessible_name == name]
        assert found, f"no button {name!r}: {self.text}"
        return found[-1]

    def click(self, name: str, within: str = "") -> None:
        button = self.wait(lambda: self.named(name, within))
        self.run("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds at one moment."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText.trim())"
        )
        return list(self.run(script, selector))

    def is_connected(self) -> bool:
        """Return whether the page has the models of the server, or asks for a key."""
        is_enabled = self.run("return document.getElementById('model')?.disabled === false")
        return is_enabled or self.find("#locked").is_displayed()

    # Messages.

    def type(self, text: str) -> None:
        """Put a text into the message box, as a paste does."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.run(script, self.find("#message"), text)

    def start(self, text: str) -> None:
        """Send a message."""
        self.type(text)
        self.find("#message").send_keys(Keys.ENTER)

    def ask(self, text: str) -> str:
        """Send a message, wait for the end of its answers, and return the last one."""
        before = len(self.all(".turn"))
        self.start(text)
        self.wait(lambda: len(self.all(".turn")) > before)
        self.wait_for_end()
        return self.answers()[-1]

    @property
    def is_running(self) -> bool:
        return bool(self.run("return document.body.classList.contains('is-running')"))

    def wait_for_end(self) -> None:
        self.wait(lambda: not self.is_running)

    def answers(self) -> list[str]:
        return self.texts(".answer > .prose")

    def choose(self, *paths: Path) -> None:
        """Choose files by the dialog of the browser."""
        self.find("#chooser").send_keys("\n".join(map(str, paths)))

    def files(self) -> list[str]:
        return self.texts("#files .file-name")


def script(**fields: Any) -> str:
    """Return a message that scripts the answer of the mock."""
    return json.dumps({"mock": fields})
