"""Images by URL: which addresses are fetched, and which never."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.kit._public_address import is_public
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.settings.fetch import FetchSettings
from vlmkit.types.media import FilePart
from vlmkit_server.apis.openai_chat.conversation import conversation_of
from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.conversation.request_builder import RequestBuilder
from vlmkit_server.settings.server import ServerSettings

CONTENT = b"x" * 1000
IMAGE_CONTENT = base64.b64decode(image_url(9, 7).partition(",")[2])


class Site(BaseHTTPRequestHandler):
    """A web site that records its requests."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers)))
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("location", self.path.removeprefix("/to/"))
            self.send_header("set-cookie", "a=b")
            self.send_header("content-length", "0")
            self.end_headers()
        elif self.path == "/slow":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.server.is_over.wait(300)
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while not self.server.is_over.is_set():
                try:
                    self.wfile.write(CONTENT)
                except OSError:
                    return
        else:
            content = IMAGE_CONTENT if self.path == "/picture" else CONTENT
            self.send_response(404 if self.path == "/missing" else 200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.requests = []
        server.is_over = threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()
        thread.join()


def fetch(url, *, may_connect=lambda _: True, **settings):
    chosen = FetchSettings(**({"enabled": True, "allow_http": True} | settings))
    return asyncio.run(ImageFetcher(chosen, may_connect=may_connect).fetch(url))


def refused(url, **options):
    with pytest.raises(ImageError) as caught:
        fetch(url, **options)
    assert caught.value.code == "image_url_not_allowed"
    return str(caught.value)


@contextmanager
def names(monkeypatch, **addresses):
    """Make names resolve to given addresses."""

    def getaddrinfo(host, port, *args, **kwargs):
        found = addresses.get(host.decode() if isinstance(host, bytes) else host, [])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in found]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield


def test_an_image_request_contains_no_cookies_proxies_or_identifying_headers(site, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert fetch(f"{site.url}/image") == CONTENT
    ((path, headers),) = site.requests
    assert path == "/image"
    assert set(map(str.lower, headers)) <= {"host", "accept", "connection"}


def test_redirects_are_followed_without_cookies_up_to_a_limit(site):
    assert fetch(f"{site.url}/to/{site.url}/to//image", max_redirects=2) == CONTENT
    assert all("Cookie" not in headers for _, headers in site.requests)
    refused(f"{site.url}/to/{site.url}/to//image", max_redirects=1)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/image",
        "http://localhost:{port}/image",
        "http://127.1:{port}/image",
        "http://2130706433:{port}/image",
        "http://0x7f000001:{port}/image",
        "http://0.0.0.0:{port}/image",
        "http://[::1]:{port}/image",
        "http://[::ffff:127.0.0.1]:{port}/image",
        "http://[64:ff9b::7f00:1]:{port}/image",
        "http://[64:ff9b:1::7f00:1]:{port}/image",
        "http://[::7f00:1]:{port}/image",
        "http://[2002:7f00:1::]:{port}/image",
        "http://[fec0::1]:{port}/image",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
    ],
)
def test_a_non_public_address_is_never_connected_to(site, url):
    refused(url.format(port=site.server_port), may_connect=is_public)
    assert not site.requests


def test_a_redirect_to_a_non_public_address_is_not_followed(site, monkeypatch):
    addresses = []

    def only_the_first(address):
        addresses.append(address)
        return len(addresses) <= 2  # once for the URL, and once for the connection

    refused(f"{site.url}/to/{site.url}/image", may_connect=only_the_first)
    assert [path for path, _ in site.requests] == [f"/to/{site.url}/image"]


def test_a_name_with_a_private_address_among_its_addresses_is_refused(monkeypatch, site):
    with names(monkeypatch, **{"mixed.example": ["93.184.215.14", "127.0.0.1"]}):
        refused(f"http://mixed.example:{site.server_port}/image", may_connect=is_public)
    assert not site.requests


def test_a_name_is_resolved_once_and_the_checked_address_is_used(monkeypatch, site):
    checked = []
    with names(monkeypatch, **{"site.example": ["127.0.0.1"]}):
        url = f"http://site.example:{site.server_port}/image"
        assert fetch(url, may_connect=lambda a: checked.append(str(a)) or True) == CONTENT
    assert checked == ["127.0.0.1"]
    assert site.requests[0][1]["host"] == f"site.example:{site.server_port}"


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@example.com/a",
        "https://example.com\\@127.0.0.1/a",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://exämple.com/",
        "https:///a",
        "https://" + "x" * 9000,
        "ftp://example.com/a",
        "file:///etc/passwd",
        "//example.com/a",
        "example.com",
        "",
    ],
)
def test_a_url_that_parsers_read_differently_is_refused(url):
    refused(url)


def test_http_urls_and_hosts_outside_the_allow_list_are_refused(site):
    refused(f"{site.url}/image", allow_http=False)
    refused(f"{site.url}/image", allowed_hosts=("example.com",))
    assert fetch(f"{site.url}/image", allowed_hosts=("127.0.0.1",)) == CONTENT


def test_errors_of_private_unreachable_and_missing_urls_are_the_same(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    texts = {
        refused(f"http://127.0.0.1:{closed}/"),
        refused(f"{site.url}/missing"),
        refused(f"{site.url}/slow", timeout_s=0.2),
        refused(f"{site.url}/to/ftp://127.0.0.1/"),
        refused(f"{site.url}/to/{site.url}/image", max_redirects=0),
        refused("http://name.invalid/"),
    }
    with names(monkeypatch, **{"inner.example": ["10.0.0.1"], "none.example": []}):
        texts.add(refused("http://inner.example/", may_connect=is_public))
        texts.add(refused("http://none.example/", may_connect=is_public))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("ftp://example.com/a.png", "must be a URL of https with a host and without a user"),
        ("http://example.com/a.png", "must be a URL of https with a host and without a user"),
        ("https://user@example.com/a.png", "must be a URL of https with a host and without a user"),
        ("https://example.com/a b.png", "characters of ASCII without spaces and backslashes"),
        ("https://example.com/" + "a" * 8192, "at most 8192 characters"),
        ("https://10.0.0.1/a.png", "is not a public one"),
        ("https://[::1]/a.png", "is not a public one"),
        ("https://elsewhere.example/a.png", "fetches no images from the host"),
    ],
)
def test_errors_visible_in_the_url_are_named_before_name_resolution(url, cause, monkeypatch):
    """No name is resolved, so the error reveals nothing of the network."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    allowed = ("example.com", "10.0.0.1", "::1")
    message = refused(url, may_connect=is_public, allow_http=False, allowed_hosts=allowed)
    assert cause in message
    assert url not in message


def test_a_download_stops_at_the_size_limit(site):
    with pytest.raises(ImageError, match="over 5000 bytes") as caught:
        fetch(f"{site.url}/endless", max_bytes=5000)
    assert caught.value.code == "image_too_large"


def test_a_fetched_file_is_decoded_like_an_uploaded_one(site):
    settings = FetchSettings(enabled=True, allow_http=True)
    fetcher = ImageFetcher(settings, may_connect=lambda _: True)

    def convert(*paths):
        parts = [image_part(f"{site.url}{path}") for path in paths]
        body = chat(messages=[{"role": "user", "content": parts}])
        with mock_pipeline() as pipeline:
            chat_body, _ = CHAT.read(json.dumps(body).encode())
            builder = RequestBuilder(ServerSettings(), fetcher)
            converting = builder.request(conversation_of(chat_body), pipeline.facts, "id")
            return asyncio.run(converting)[0]

    (part,) = convert("/picture").messages[0].parts
    assert (part.image.width, part.image.height) == (9, 7)
    _, other = convert("/picture", "/image").messages[0].parts
    assert isinstance(other, FilePart)  # no image: media loaders refuse it
    assert other.is_image


def test_the_server_refuses_private_addresses_with_fetching_enabled(site):
    settings = FetchSettings(enabled=True, allow_http=True)
    with running(fetch=settings) as server:
        parts = [image_part(f"{site.url}/image")]
        body = {"model": "mock", "messages": [{"role": "user", "content": parts}]}
        error = server.post(body).json()["error"]
        assert error["code"] == "image_url_not_allowed"
        assert error["param"] == "messages[0].content[0].image_url.url"
    assert not site.requests


def test_out_of_memory_is_not_reported_as_a_refused_address(site, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(ImageFetcher, "_read", fail)
    with pytest.raises(OutOfMemory):
        fetch(f"{site.url}/picture")
