"""Probes of routers, the methods of each route, and cross-origin access of web pages."""

import re

import msgspec
import pytest
from litestar.routes import HTTPRoute
from running_server import chat, running

from vlmkit import __version__
from vlmkit_server.app import create_app
from vlmkit_server.settings.server import ServerSettings

PAGE = "https://chat.example.com"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
ROUTES = {
    route.path: set(route.methods)
    for route in create_app({}).routes
    if isinstance(route, HTTPRoute)
}
READABLE = sorted(path for path, methods in ROUTES.items() if "GET" in methods)
POSTED = sorted(path for path, methods in ROUTES.items() if "POST" in methods)


def filled(path):
    return re.sub(r"\{.*?\}", "mock", path)


def preflight(server, origin, path="/v1/chat/completions"):
    headers = ASKS | {"origin": origin}
    return server.http.request("OPTIONS", f"{server.url}{path}", headers=headers)


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ping"])
def test_health_probes_of_routers_are_answered(server, path):
    assert server.get(path).json() == {"status": "ok"}


def test_the_version_is_returned(server):
    assert server.get("/version").json() == {"version": __version__}


@pytest.mark.parametrize("path", READABLE)
def test_head_requests_have_the_headers_of_get_requests(server, path):
    url = server.url + filled(path)
    whole, head = server.http.get(url), server.http.head(url)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    names = ("content-type", "content-length")
    assert [head.headers[name] for name in names] == [whole.headers[name] for name in names]
    assert head.headers["x-request-id"]


@pytest.mark.parametrize("path", sorted({*POSTED} - {*READABLE}))
def test_post_routes_refuse_get_and_head(server, path):
    for method in ("GET", "HEAD"):
        answer = server.http.request(method, server.url + filled(path))
        assert answer.status_code == 405
        assert allowed(answer) == {"POST", "OPTIONS"}


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_every_route_lists_its_methods(server, path):
    answer = server.http.options(server.url + filled(path))
    assert (answer.status_code, answer.content) == (204, b"")
    assert allowed(answer) == ROUTES[path]


def allowed(answer):
    return set(answer.headers["allow"].replace(" ", "").split(","))


def test_an_unknown_path_is_a_404_for_each_method(server):
    for method in ("GET", "HEAD", "OPTIONS", "POST"):
        assert server.http.request(method, f"{server.url}/nowhere").status_code == 404


def test_cors_is_disabled_by_default(server):
    page = {"origin": PAGE}
    answers = [
        preflight(server, PAGE),
        server.get("/v1/models", headers=page),
        server.post(chat(), headers=page),
    ]
    assert not [
        name for answer in answers for name in answer.headers if name.startswith("access-control")
    ]


def test_a_page_of_a_listed_origin_can_send_requests_and_read_answers():
    with running(allowed_origins=(PAGE, "http://localhost:3000")) as server:
        answer = preflight(server, PAGE)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert answer.headers["access-control-allow-headers"] == "content-type"
        page = {"origin": PAGE}
        for stream in (False, True):
            answer = server.post(chat(stream=stream), headers=page)
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= {*exposed}
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers["vary"] == "origin"
        refused = server.post(b"{", headers=page)
        assert refused.status_code == 400
        assert refused.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", [f"{PAGE}.evil.example", "http://chat.example.com", "null", ""])
def test_a_page_of_an_unlisted_origin_cannot_read_answers(origin):
    with running(allowed_origins=(PAGE,)) as server:
        read = server.get("/healthz", headers={"origin": origin})
        for answer in (preflight(server, origin), read):
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "origin"  # no cache serves it to PAGE


def test_a_listed_origin_does_not_bypass_the_host_check():
    with running(allowed_origins=(PAGE,)) as server:
        headers = {"origin": PAGE, "host": "evil.example"}
        assert server.get("/v1/models", headers=headers).status_code == 421


@pytest.mark.parametrize("origin", ["*", "https://*.example.com", "example.com", f"{PAGE}/", ""])
def test_an_origin_must_be_a_scheme_and_a_host(origin):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"allowed_origins": [origin]}, ServerSettings)
