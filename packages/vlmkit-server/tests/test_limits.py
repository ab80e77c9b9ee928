"""Requests over a limit are refused early, each with its own status and code."""

import json
import re
import socket

import pytest
from running_server import (
    chat,
    http_request,
    image_part,
    image_url,
    mock_pipeline,
    running,
)

from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_mock.tokenizer import MockTokenizer


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def post_images(server, *urls):
    parts = [image_part(url) for url in urls]
    return server.post({"model": "mock", "messages": [{"role": "user", "content": parts}]})


def exchange(server, data: bytes) -> bytes:
    """Send bytes and read to the end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(data)
        received = b""
        while part := connection.recv(65_536):
            received += part
        return received


def pipelined_requests(num):
    """Return pipelined requests, each with its own id."""
    content = json.dumps(chat("x" * 2000)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: r%d\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return b"".join(head % (n, len(content)) + content for n in range(num))


def ids_and_statuses(received):
    """Return the ids of answers in order, and their statuses."""
    ids = re.findall(rb"\r\nx-request-id: (\w+)\r\n", received)
    return [each.decode() for each in ids], set(re.findall(rb"HTTP/1.1 (\d+) ", received))


@pytest.mark.parametrize("num", [17, 400])
def test_the_first_sixteen_pipelined_requests_are_answered(server, num):
    """The connection closes after them without a reset, though the client sent more."""
    received = exchange(server, pipelined_requests(num))
    assert ids_and_statuses(received) == ([f"r{n}" for n in range(16)], {b"200"})
    assert received.count(b"connection: close") == 1


@pytest.mark.slow
def test_a_pipelined_request_that_waits_for_100_continue_is_answered_when_more_follow(server):
    waiting = pipelined_requests(400).replace(b"\r\nhost:", b"\r\nexpect: 100-continue\r\nhost:")
    received = exchange(server, waiting)
    assert ids_and_statuses(received) == ([f"r{n}" for n in range(16)], {b"100", b"200"})


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_of_http_1_0_gets_the_body_as_it_is_and_eof_ends_it(server, streams):
    body = json.dumps(chat("hello") | {"stream": streams}).encode()
    head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\n"
    received = exchange(server, head + b"content-length: %d\r\n\r\n" % len(body) + body)
    head, _, answer = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    if streams:
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("wrong", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200])
def test_invalid_bytes_after_pipelined_requests_do_not_replace_an_answer(server, wrong):
    assert ids_and_statuses(exchange(server, pipelined_requests(3) + wrong)) == (
        ["r0", "r1", "r2"],
        {b"200"},
    )
    assert exchange(server, wrong).startswith(b"HTTP/1.1 4")


def test_invalid_bytes_after_a_request_do_not_cut_its_stream(server):
    received = exchange(server, http_request(chat(stream=True)) + b"nonsense\r\n\r\n")
    assert received.count(b"HTTP/1.1") == 1
    assert b"data: [DONE]" in received
    assert received.endswith(b"0\r\n\r\n")


def test_unknown_paths_and_methods_have_an_error_body_in_openai_format(server):
    assert error_of(server.get("/v1/nowhere"), 404)["code"] == "not_found"
    answer = server.get("/v1/chat/completions")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert "POST" in answer.headers["allow"]


def test_a_body_requires_a_json_content_type(server):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = server.post(chat(), headers={"content-type": kind})
        assert error_of(answer, 415)["code"] == "unsupported_media_type"
    kind = "application/json; charset=utf-8"
    assert server.post(chat(), headers={"content-type": kind}).status_code == 200


def test_a_body_over_the_limit_is_refused_with_and_without_content_length():
    with running(max_body_bytes=1000) as server:
        assert error_of(server.post(chat("x" * 1000)), 413)["code"] == "request_too_large"
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        head = http_request(chat()).partition(b"content-length")[0]
        answer = exchange(
            server, head + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
        )
        assert b" 413 " in answer
        assert server.post(chat()).status_code == 200


def test_a_body_that_arrives_too_slowly_is_refused():
    with running(body_timeout_s=0.2) as server:
        answer = exchange(server, http_request(chat())[:-5])
        assert b" 408 " in answer
        assert b'"code":"request_timeout"' in answer


def test_slow_or_missing_headers_close_the_connection():
    with running(header_timeout_s=0.2) as server:
        assert exchange(server, b"") == b""
        assert exchange(server, b"GET /healthz HTTP/1.1\r\nhost: lo") == b""
        assert server.service.admission.num_open == 0


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 70_000,
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 129,
        b"GET /" + b"x" * 70_000,
    ],
)
def test_headers_over_the_limits_are_refused(server, head):
    answer = exchange(server, head + b"\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert server.get("/healthz").status_code == 200


def test_a_loopback_server_refuses_other_host_names(server):
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::2]"):
        for path in ("/healthz", "/v1/models", "/nowhere"):
            error = error_of(server.get(path, headers={"host": host}), 421)
            assert error["code"] == "host_not_allowed"
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"):
        assert server.get("/healthz", headers={"host": host}).status_code == 200


def test_answers_have_no_cors_headers_by_default(server):
    answer = server.get("/v1/models", headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "https://example.com/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "../../etc/passwd",
        "DATUM:image/png;base64,AAAA",
        "ftp://example.com/a.png",
        "",
    ],
)
def test_only_data_urls_are_opened_unless_fetching_is_enabled(server, url):
    error = error_of(post_images(server, url), 400)
    assert error["code"] == "image_url_not_allowed"
    assert error["param"] == "messages[0].content[0].image_url.url"
    assert not url or url not in error["message"]


@pytest.mark.parametrize(
    "url", ["data:", "data:image/png;base64,", "data:image/png;base64,%%%", "data:,x",
            "data:image/png;base64,AAAA", "DATA:image/png;base64,AAAA"]
)  # fmt: skip
def test_a_broken_image_is_refused_with_its_location(server, url):
    error = error_of(post_images(server, image_url(), url), 400)
    assert error["code"] == "invalid_image"
    assert error["param"] == "messages[0].content[1].image_url.url"


def test_the_number_and_size_of_images_are_limited():
    limits = PipelineSettings(max_images=2, images=ImageLimits(max_pixels=100))
    with running({"mock": mock_pipeline(settings=limits)}, max_request_pixels=100) as server:
        assert post_images(server, image_url(8, 6), image_url(8, 6)).status_code == 200
        assert (
            error_of(post_images(server, *[image_url(2, 2)] * 3), 400)["code"] == "too_many_images"
        )
        assert error_of(post_images(server, image_url(11, 10)), 400)["code"] == "image_too_large"
        error = error_of(post_images(server, image_url(8, 6), image_url(10, 6)), 400)
        assert error["code"] == "image_too_large"
        assert error["param"] == "messages"  # the total of all images


def test_a_text_model_refuses_images():
    with running({"mock": mock_pipeline(takes_images=False)}) as server:
        assert error_of(post_images(server, "data:broken"), 400)["param"] == "messages"


def test_the_text_length_is_limited_before_tokenization():
    with running(max_text_chars=100) as server:
        assert server.post(chat("x" * 100)).status_code == 200
        assert error_of(server.post(chat("x" * 101)), 400)["code"] == "context_length_exceeded"


def test_out_of_memory_is_a_503_with_retry_after_and_without_library_text(
    server, monkeypatch, caplog
):
    def fail(*_, **__):
        raise MemoryError("the words of a library")

    monkeypatch.setattr(MockTokenizer, "prompt", fail)
    answer = server.post(chat())
    error = error_of(answer, 503)
    assert (error["code"], error["type"]) == ("out_of_memory", "service_unavailable_error")
    assert "library" not in answer.text
    assert answer.headers["retry-after"]
    assert "failed: OutOfMemory" in caplog.text


def test_trailers_of_a_chunked_body_are_not_read_as_headers():
    body = json.dumps(chat("hello")).encode()
    with running() as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\nhost: evil.example\r\n\r\n" % (len(body), body)
        )
        assert connection.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
