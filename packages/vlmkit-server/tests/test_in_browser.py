"""Web pages in a real browser: only pages of listed origins can use the server.

These tests need Chromium or Chrome.
"""

import json
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from running_server import chat, eventually, running
from two_keys import headers_of

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--no-proxy-server",
]  # fmt: skip
PAGE = """<!doctype html><script>
const asked = ASKED;
async function ask([path, options]) {
  try {
    const answer = await fetch("SERVER" + path, options);
    const seen = Object.fromEntries(answer.headers);
    return {status: answer.status, seen, text: await answer.text()};
  } catch (error) {
    return {error: error.name};
  }
}
Promise.all(asked.map(ask)).then(
  told => fetch("/told", {method: "POST", body: JSON.stringify(told)}));
</script>"""

pytestmark = [
    pytest.mark.posix,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here"),
]


class Site:
    """Serves one page, and records what the page reports."""

    def __init__(self):
        site, self.page = self, ""
        self.told, self.is_told = None, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._answer(site.page.encode())

            def do_POST(self):
                site.told = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer(b"")
                site.is_told.set()

            def _answer(self, content):
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def site():
    site_server = Site()
    with site_server.server:
        thread = threading.Thread(target=site_server.server.serve_forever)
        thread.start()
        try:
            yield site_server
        finally:
            site_server.server.shutdown()
            thread.join()


def visit(site, server, asked, folder):
    """Return the results of a page's requests, as the page sees them."""
    site.page = PAGE.replace("ASKED", json.dumps(asked)).replace("SERVER", server.url)
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"{site.origin}/"]
    with (folder / "browser").open("wb") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            assert site.is_told.wait(300), (folder / "browser").read_text(errors="replace")
        finally:
            browser.kill()
            browser.wait()
    return site.told


def requests(headers):
    """Return the requests of a page:

    with and without a key, whole and streamed, and simple ones without preflight.
    """

    def post(body, **more):
        sent = {"content-type": "application/json", **more}
        return [
            "/v1/chat/completions",
            {"method": "POST", "headers": sent, "body": json.dumps(body)},
        ]

    return [
        post(chat("hello"), **headers),
        post(chat("hello", stream=True, nobody_knows=1), **headers),
        post(chat("hello")),
        ["/v1/models", {"headers": headers}],
        ["/healthz", {}],
        ["/v1/chat/completions", {"method": "POST", "body": json.dumps(chat("hello"))}],
    ]


def test_pages_of_listed_origins_can_use_the_server_and_others_read_nothing(tmp_path):
    (headers,) = headers_of(tmp_path, "page")
    with site() as known, site() as unknown:
        keys = str(tmp_path / "keys.jsonl")
        with running(keys_file=keys, allowed_origins=(known.origin,)) as server:
            page_requests = requests(headers)
            whole, streamed, keyless, models, health, plain = visit(
                known, server, page_requests, tmp_path
            )
            assert json.loads(whole["text"])["choices"][0]["message"]["content"] == "hello"
            assert whole["seen"]["x-request-id"]
            assert streamed["status"] == 200
            assert streamed["text"].endswith("data: [DONE]\n\n")
            assert streamed["seen"]["x-vlmkit-ignored"] == "nobody_knows"
            assert keyless["status"] == 401
            assert json.loads(models["text"])["data"][0]["id"] == "mock"
            assert (health["status"], plain["status"]) == (200, 401)
            assert eventually(lambda: server.runner().stats().counters["num_finished"] == 2)
            nothing = visit(unknown, server, page_requests, tmp_path)
            assert nothing == [{"error": "TypeError"}] * len(page_requests)
            assert server.runner().stats().counters["num_finished"] == 2
