"""The server's HTML pages: they load nothing from elsewhere and reveal no secret."""

import html
import re
import subprocess
from html.parser import HTMLParser

import pytest
from running_server import mock_pipeline, running

from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
VOID = {"meta", "br"}
NAME = "<script>alert('x')</script>\"&it's"


class Page(HTMLParser):
    """Parses a page, which must be well formed, and records its texts, links and elements."""

    def __init__(self, answer):
        super().__init__()
        self.open, self.elements, self.links, self.ids, self.texts = [], set(), [], set(), []
        self.feed(answer.text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        said = dict(attrs)
        assert set(said) <= {"href", "id", "lang", "charset", "name", "content"}
        if "href" in said:
            self.links.append(said["href"])
        if "id" in said:
            self.ids.add(said["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def test_the_start_page_shows_the_models_and_a_working_command(server):
    answer = server.get("/", headers=BROWSER)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer)
    assert "mock" in page.texts
    assert "ready; takes text, image" in page.text
    for link in page.links:
        assert server.get(link, headers=BROWSER).status_code == 200
    command = html.unescape(re.search(r"<pre>(.*?)</pre>", answer.text, re.DOTALL)[1])
    completed = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=True
    )
    assert '"content":"Hello"' in completed.stdout


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/*"])
def test_a_client_that_does_not_accept_html_gets_a_line_and_no_start_page(accept, server):
    answer = server.get("/", headers={} if accept is None else {"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "vlmkit is running\n"


def test_the_model_name_and_the_host_are_escaped():
    with running({NAME: mock_pipeline()}) as server:
        page = Page(server.get("/", headers=BROWSER))
        assert "script" not in page.elements
        assert NAME in page.texts
        host = {"host": f"127.0.0.1:{server.port}'\"><img>"}
        assert "<img" not in server.get("/", headers=BROWSER | host).text


def test_a_page_without_a_key_shows_no_models(tmp_path):
    key, secret = new_key("alice", ("chat",))
    add_line(tmp_path / "keys.jsonl", key)
    with running(keys_file=str(tmp_path / "keys.jsonl")) as server:
        page = Page(server.get("/", headers=BROWSER))
        assert "requires API keys" in page.text
        assert "mock" not in page.texts
        assert "state" not in page.texts
        assert server.get("/docs", headers=BROWSER).status_code == 401
        with_key = BROWSER | {"authorization": f"Bearer {secret}"}
        assert server.get("/docs", headers=with_key).status_code == 200


def test_the_pages_load_no_resources_and_run_no_scripts(server):
    for path in ("/", "/docs"):
        answer = server.get(path, headers=BROWSER)
        rules = answer.headers["content-security-policy"].split("; ")
        assert rules[0] == "default-src 'none'"
        assert rules[1].startswith("style-src 'sha256-")
        assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= set(rules)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        page = Page(answer)
        assert page.elements.isdisjoint({"script", "img", "link", "iframe", "object", "form"})
        assert all(link.startswith(("/", "#")) for link in page.links)


def test_the_docs_show_each_operation_and_type_of_the_document(server):
    document = server.get("/openapi.json").json()
    page = Page(server.get("/docs"))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "head":
                assert operation["operationId"] in page.ids
                assert f"{method.upper()} {path}" in page.texts
    for name, schema in document["components"]["schemas"].items():
        assert f"type-{name}" in page.ids
        assert {*schema.get("properties", {})} <= {*page.texts}
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
