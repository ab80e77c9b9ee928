"""Draining: a server finishes running requests, and then exits with code 0."""

import json
import signal
import socket
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from running_server import eventually, http_request, process, scripted

pytestmark = pytest.mark.posix

PROGRAM = textwrap.dedent("""
    import json, logging, sys
    from pathlib import Path
    logging.basicConfig(level=logging.INFO)
    sys.path += [sys.argv[1], str(Path(sys.argv[1]).parents[2] / "tests")]
    from vlmkit.running.replicas import Replicas
    from running_server import mock_pipeline
    from vlmkit_server.run import serve
    from vlmkit_server.settings.server import ServerSettings

    def replicas():
        return Replicas([mock_pipeline(), mock_pipeline()])

    load = {"pipeline": mock_pipeline, "replicas": replicas}[sys.argv[3]]
    serve({"mock": load}, ServerSettings(**json.loads(sys.argv[2])))
""")
SLOW = scripted(text="x", tokens=40, latency_s=0.02)
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.05)


@contextmanager
def server_process(tmp_path, kind="pipeline", **settings):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, here, json.dumps({"port": 0} | settings), kind]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        yield server


@pytest.mark.parametrize(
    ("sig", "kind"),
    [
        (signal.SIGTERM, "pipeline"),
        pytest.param(signal.SIGINT, "pipeline", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "replicas", marks=pytest.mark.slow),
    ],
)
def test_running_answers_finish_and_new_ones_are_refused(tmp_path, sig, kind):
    with server_process(tmp_path, kind, drain_timeout_s=3600) as server:
        stream = server.stream(SLOW)
        next(stream)
        server.process.send_signal(sig)
        assert eventually(lambda: server.status() == 503)
        assert server.status("/healthz") == 200
        with pytest.raises(openai.APIStatusError) as caught:
            server.stream("new")
        assert caught.value.status_code == 503
        assert caught.value.code == "server_draining"
        assert caught.value.response.headers["retry-after"] == "60"  # at most a minute
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert sum(len(chunk.choices[0].delta.content or "") for chunk in chunks) == 40
        assert server.process.wait(300) == 0


def test_an_answer_that_exceeds_the_drain_deadline_ends_with_an_error(tmp_path):
    with server_process(tmp_path, drain_timeout_s=0.3) as server:
        stream = server.stream(ENDLESS)
        next(stream)
        server.process.terminate()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "server_draining"
        assert server.process.wait(300) == 0


def test_an_idle_server_ends_at_once_even_with_open_connections(tmp_path):
    with server_process(tmp_path) as server:
        assert server.client.models.list().data
        server.process.terminate()
        assert server.process.wait(300) == 0


def test_a_second_signal_kills_the_process(tmp_path):
    with server_process(tmp_path) as server:
        stream = server.stream(ENDLESS)
        next(stream)
        server.process.terminate()
        assert eventually(lambda: server.status() == 503)
        server.process.terminate()
        assert server.process.wait(300) == -signal.SIGTERM
        stream.close()


def test_a_drain_does_not_wait_for_request_bodies(tmp_path):
    with server_process(tmp_path, body_timeout_s=300, drain_timeout_s=300) as server:
        url = urlsplit(server.url)
        with socket.create_connection((url.hostname, url.port), 300) as stranger:
            stranger.sendall(http_request({"model": "mock", "messages": []})[:-1])
            assert eventually(lambda: server.status() == 200)  # it was accepted before the drain
            server.process.terminate()
            answer = b""
            while b"server_draining" not in answer:
                part = stranger.recv(65_536)
                assert part
                answer += part
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert server.process.wait() == 0
