"""Clients that disconnect or stop reading use no more resources."""

import socket
import struct
import threading

import pytest
from running_server import (
    chat,
    eventually,
    http_request,
    image_part,
    image_url,
    mock_pipeline,
    running,
    scripted,
)

from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.settings.pipeline import PipelineSettings

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)


def close(connection: socket.socket, how: str) -> None:
    """End a connection: close, reset, or shut down one direction."""
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_during_an_answer_aborts_the_request(server, stream, how):
    num_aborted = server.runner().stats().counters["num_aborted"]
    connection = server.connect(chat(ENDLESS, stream=stream, max_tokens=4000))
    assert eventually(lambda: server.runner().stats().num_running == 1)
    if stream:
        assert b"200 OK" in connection.recv(1000)
    close(connection, how)
    assert eventually(server.is_idle)
    assert server.runner().stats().counters["num_aborted"] == num_aborted + 1
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_in_the_queue_removes_the_request(stream):
    pipeline = mock_pipeline(max_sequences=1)
    with running({"mock": pipeline}) as server:
        first = server.connect(chat(ENDLESS, stream=True, max_tokens=4000))
        assert eventually(lambda: pipeline.stats().num_running == 1)
        second = server.connect(chat("second", stream=stream))
        assert eventually(lambda: pipeline.stats().num_waiting == 1)
        close(second, "close")
        assert eventually(lambda: pipeline.stats().num_waiting == 0)
        assert pipeline.stats().num_running == 1
        close(first, "close")
        assert eventually(server.is_idle)


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_during_image_decoding_keeps_the_request_from_the_engine(stream):
    pipeline = mock_pipeline(settings=PipelineSettings(num_workers=1))
    is_busy, go_on = threading.Event(), threading.Event()
    with running({"mock": pipeline}) as server:
        blocker = pipeline._workers.workers.submit("", lambda: (is_busy.set(), go_on.wait()))
        assert is_busy.wait(300)
        parts = [image_part(image_url())]
        body = {"model": "mock", "stream": stream, "messages": [{"role": "user", "content": parts}]}
        connection = server.connect(body)
        assert eventually(lambda: server.service.admission.num_open == 1)
        close(connection, "close")
        assert eventually(lambda: server.service.admission.num_open == 0)
        go_on.set()
        blocker.result()
        assert eventually(server.is_idle)
        assert pipeline.stats().counters["num_tokens_computed"] == 0


def test_a_disconnect_during_the_body_removes_the_request(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(http_request(chat("x" * 1000))[:-500])
    assert eventually(lambda: server.service.admission.num_open == 1)
    connection.close()
    assert eventually(server.is_idle)


def test_a_disconnect_ends_a_pipelined_request_too(server, caplog):
    connection = server.connect(chat(ENDLESS, stream=True, max_tokens=4000))
    connection.sendall(http_request(chat(ENDLESS, stream=True, max_tokens=4000)))
    assert eventually(lambda: server.runner().stats().num_running == 1)
    assert b"200 OK" in connection.recv(1000)
    close(connection, "close")
    assert eventually(server.is_idle)
    assert not caplog.records


def test_pipelined_requests_are_answered_in_order(server):
    connection = server.connect(chat("first"))
    connection.sendall(http_request(chat("second")))
    received = b""
    while b"second" not in received:
        received += connection.recv(65_536)
    assert received.index(b'"first"') < received.index(b'"second"')
    connection.close()


def test_many_disconnects_at_any_moment_leave_nothing_behind():
    pipeline = mock_pipeline(max_sequences=4)
    with running({"mock": pipeline}) as server:
        for number in range(60):
            text = scripted(text="x", tokens=2000, latency_s=0.002)
            connection = server.connect(chat(text, stream=number % 2 == 0, max_tokens=2000, n=2))
            if number % 3 == 0:
                assert eventually(lambda: pipeline.stats().num_running > 0)
            close(connection, "reset" if number % 5 == 0 else "close")
        assert eventually(server.is_idle)
        assert not server.service.admission.tasks
        is_here = isinstance(pipeline, Pipeline)
        assert not (pipeline._loop.num_jobs if is_here else pipeline._requests)
        assert pipeline.stats().counters["num_finished"] == 0
        assert server.post(chat("still here")).json()["choices"][0]["finish_reason"] == "stop"


def test_a_client_that_reads_nothing_is_disconnected():
    pipeline = mock_pipeline(max_sequence_tokens=10**6, capacity_tokens=10**6)
    with running({"mock": pipeline}, send_timeout_s=0.3) as server:
        text = scripted(text="x", tokens=900_000)
        body = chat(text, stream=True, logprobs=True, top_logprobs=20, max_tokens=900_000)
        connection = server.connect(body, receive_bytes=4096)
        assert eventually(lambda: server.service.admission.num_open == 1)
        assert eventually(server.is_idle)
        assert pipeline.stats().counters["num_aborted"] == 1
        connection.close()


def test_a_slow_client_receives_the_whole_answer():
    text = scripted(text="x", tokens=3000)
    with running(send_timeout_s=300) as server:
        connection = server.connect(
            chat(text, stream=True, logprobs=True, top_logprobs=20, max_tokens=3000),
            receive_bytes=4096,
        )
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65_536)
        assert received.count(b'"content":"x"') == 3000
        connection.close()
