"""The routes of the page: its files are public and hold nothing; everything else needs a key."""

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from litestar.routes import HTTPRoute
from page_server import KEY, PageServer

from vlmkit_server.apis.builtin import APIS
from vlmkit_server.app import create_app
from vlmkit_server.settings.server import ServerSettings
from vlmkit_testing import ApiContract
from vlmkit_testing.contracts.api_contract import Received, Sent
from vlmkit_webui.api import HEADERS, WebPageApi
from vlmkit_webui.settings import WebPageSettings

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
LIVENESS = {"/healthz", "/health", "/ping"}
FOLDER = Path(__file__).parents[1] / "src/vlmkit_webui/page"
FILES = sorted(f"/webui/{path.name}" for path in FOLDER.iterdir() if path.suffix != ".html")


class TestWebPage(ApiContract):
    def make(self) -> WebPageApi:
        return WebPageApi(WebPageSettings())

    def requests(self) -> list[Sent]:
        return [Sent(path, method="GET") for path in ("/", *FILES)]

    def chat(self, text: str, *, stream: bool, image_url: str = "") -> None:
        return None

    def answer_of(self, received: Received) -> str:
        return received.body.decode()


def paths_of(settings: WebPageSettings, **server: Any) -> set[str]:
    apis = {**APIS, "webui": WebPageApi(settings)}
    app = create_app({}, ServerSettings(**server), apis=apis)
    return {route.path for route in app.routes if isinstance(route, HTTPRoute)}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_page_is_there_on_loopback_unless_disabled(host: str) -> None:
    assert {*FILES, "/"} <= paths_of(WebPageSettings(), host=host)
    assert not {*FILES} & paths_of(WebPageSettings(enabled=False), host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_the_page_is_not_there_for_other_machines_unless_enabled(host: str) -> None:
    assert not {*FILES} & paths_of(WebPageSettings(), host=host)
    assert {*FILES, "/"} <= paths_of(WebPageSettings(enabled=True), host=host)


@pytest.mark.parametrize("enabled", [True, False])
def test_behind_a_proxy_on_this_machine_the_page_is_there_unless_disabled(
    enabled: bool, tmp_path: Path
) -> None:
    options = ["--set", 'server.allowed_hosts=["models.example.com"]']
    options += [] if enabled else ["--set", "apis.webui.enabled=false"]
    proxied = {"host": "models.example.com", "x_forwarded_for": "203.0.113.7", "accept": HTML}
    with PageServer(tmp_path, options) as server:
        assert ("webui/app.js" in server.get("/", **proxied).text) is enabled
        assert server.get(FILES[0], **proxied).status_code == (200 if enabled else 404)


def test_without_the_page_there_is_the_start_page_of_the_server(tmp_path: Path) -> None:
    with PageServer(tmp_path, ["--set", "apis.webui.enabled=false"]) as server:
        assert "/v1/capabilities" in server.get("/", accept=HTML).text
        assert server.get(FILES[0]).status_code == 404


def test_only_liveness_and_the_files_of_the_page_need_no_key(keyed: PageServer) -> None:
    document = keyed.get("/openapi.json", authorization=f"Bearer {KEY}").json()
    public = {"/", *FILES, *LIVENESS}
    readable = [path for path, methods in document["paths"].items() if "get" in methods]
    assert public <= set(readable)
    for path in readable:
        answer = keyed.get(re.sub(r"\{.*?\}", "mock", path), accept=HTML)
        assert answer.status_code == (200 if path in public else 401), path


def test_the_files_of_the_page_name_no_model_and_no_key(keyed: PageServer) -> None:
    for path in ("/", *FILES):
        text = keyed.get(path, accept=HTML).text
        assert "mock" not in text
        assert KEY not in text


def test_every_file_has_the_policy_that_keeps_other_code_out(server: PageServer) -> None:
    for path in ("/", *FILES):
        headers = server.get(path, accept=HTML).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
        policy = headers["content-security-policy"].split("; ")
        rules = dict(rule.split(" ", 1) for rule in policy)
        assert rules.pop("default-src") == "'none'"
        assert rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"] == "'none'"
        assert {value for name, value in rules.items() if name.endswith("-src")} == {"'self'"}
        assert rules["require-trusted-types-for"] == "'script'"


def test_the_document_has_no_script_and_no_style_of_its_own() -> None:
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?:|//", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text) == [""]


def test_no_module_turns_text_into_markup_or_code() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc"
        r"|createContextualFragment|\beval\b|new Function|setTimeout\(\s*[\"'`]"
    )
    for path in FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not forbidden.search(text), path.name
        assert not re.findall(r"\bfrom \"(?!\./)", text), path.name


def test_clients_that_are_no_browser_get_a_line(server: PageServer) -> None:
    answer = server.get("/", accept="*/*")
    assert (answer.status_code, answer.text) == (200, "vlmkit is running\n")


def test_a_file_that_the_browser_has_is_not_sent_again(server: PageServer) -> None:
    first = server.get(FILES[0])
    again = server.get(FILES[0], if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert server.get(FILES[0], if_none_match='"other"').content == first.content


def test_the_server_prints_the_address_of_the_page(tmp_path: Path) -> None:
    server = PageServer(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        server.port = free.getsockname()[1]
    with server:
        server.wait(lambda: f"Open {server.url}/ in a browser." in server.log)


@pytest.mark.posix
def test_open_shows_the_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, program = tmp_path / "shown", tmp_path / "program"
    line = f"import pathlib, sys; pathlib.Path({str(shown)!r}).write_text(sys.argv[1])"
    program.write_text(f"#!{sys.executable}\n{line}\n")
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{program} %s")
    with PageServer(tmp_path, ["--open"]) as server:
        server.wait(lambda: shown.exists() and shown.read_text())
        assert shown.read_text() == f"{server.url}/"
