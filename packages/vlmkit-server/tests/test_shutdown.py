"""One SIGTERM ends the process at the drain deadline, whatever is running."""

import json
import os
import signal
import socket
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from process_tree import children_of, pid_of_pipeline
from running_server import chat, eventually, http_request, image_part, image_url, process, scripted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.05)
HANGS_S = 1000

PROGRAM = textwrap.dedent("""
    import logging, sys, time
    from pathlib import Path
    import msgspec
    logging.basicConfig(level=logging.INFO)
    sys.path += [sys.argv[1], str(Path(sys.argv[1]).parents[2] / "tests")]
    from running_server import mock_pipeline
    from vlmkit_server.run import serve
    from vlmkit_server.settings.server import ServerSettings
    from vlmkit_mock.engine import MockEngine
    from vlmkit_mock.tokenizer import MockTokenizer

    def hang(*args, **options):
        print("hangs", file=sys.stderr, flush=True)
        time.sleep(1000)

    if sys.argv[3] == "engine":
        MockEngine.forward = hang
    if sys.argv[3] == "tokenizer":
        MockTokenizer.prompt = hang
    loads = {"mock": mock_pipeline}
    if sys.argv[3] == "load":
        loads["late"] = hang
    serve(loads, msgspec.json.decode(sys.argv[2], type=ServerSettings))
""")


@contextmanager
def served(folder, kind="", **settings):
    """Run a server whose engine, tokenizer or second model hangs, with a health port."""
    given = {"port": 0, "health_port": 0, "drain_timeout_s": 1.0} | settings
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), json.dumps(given), kind]
    with process(command, folder) as server:
        assert eventually(lambda: "'mock' is ready" in server.log.read_text())
        yield server


def connect(server, sent):
    url = urlsplit(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(300)
    connection.connect((url.hostname, url.port))
    connection.sendall(sent)
    return connection


def stop(server):
    """Send SIGTERM; return the exit status, and the log from then on."""
    before = len(server.log.read_text())
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(300)
    return status, server.log.read_text()[before:]


def assert_stops_cleanly(server):
    status, said = stop(server)
    assert status == 0, said
    assert "ERROR" not in said
    assert "CRITICAL" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_clients_that_read_nothing_do_not_delay_shutdown(tmp_path, stream):
    body = chat(scripted(text="x " * 100, tokens=4000), stream=stream, logprobs=True)
    with served(tmp_path) as server, ExitStack() as open_ones:
        body |= {"top_logprobs": 20, "max_tokens": 4000}
        readers = [open_ones.enter_context(connect(server, http_request(body))) for _ in range(3)]
        assert all(b"200 OK" in reader.recv(100) for reader in readers)
        assert_stops_cleanly(server)


def test_running_answers_do_not_delay_shutdown(tmp_path):
    with served(tmp_path) as server, ExitStack() as open_ones:
        for stream in (True, False):
            body = chat(ENDLESS, stream=stream, max_tokens=4000)
            open_ones.enter_context(connect(server, http_request(body)))
        assert_stops_cleanly(server)


def test_a_loading_model_does_not_delay_shutdown(tmp_path):
    with served(tmp_path, "load") as server:
        assert eventually(lambda: "hangs" in server.log.read_text())
        assert_stops_cleanly(server)


@pytest.mark.slow
def test_slow_uploads_do_not_delay_shutdown(tmp_path):
    head = (
        b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: multipart/form-data; boundary=x\r\ncontent-length: 100000\r\n\r\n--x\r\n"
    )
    for folder in ("", str(tmp_path / "data")):
        own = tmp_path / f"server{len(folder)}"
        own.mkdir()
        with served(own, data={"folder": folder}) as server, ExitStack() as open_ones:
            for sent in (head, http_request(chat("x" * 1000))[:-100]):
                open_ones.enter_context(connect(server, sent))
            assert server.status() == 200
            assert_stops_cleanly(server)


def test_a_hanging_tokenizer_does_not_delay_shutdown(tmp_path):
    with served(tmp_path, "tokenizer") as server, connect(server, http_request(chat("hello"))):
        assert eventually(lambda: "hangs" in server.log.read_text())
        assert_stops_cleanly(server)


def test_a_hanging_engine_does_not_outlive_the_process(tmp_path):
    with served(tmp_path, "engine") as server, connect(server, http_request(chat("hello"))):
        assert eventually(lambda: "hangs" in server.log.read_text())
        status, said = stop(server)
    assert status == 1
    assert "shutdown hangs after the drain deadline" in said
    assert "vlmkit-loop" in said


def test_batches_do_not_delay_shutdown(tmp_path):
    with served(tmp_path, data={"folder": str(tmp_path / "data")}) as server:
        line = {"method": "POST", "url": "/v1/chat/completions", "body": chat(ENDLESS)}
        lines = [json.dumps({"custom_id": f"{n}"} | line) for n in range(50)]
        file = server.client.files.create(
            file=("b.jsonl", "\n".join(lines).encode()), purpose="batch"
        )
        batch = server.client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        is_asked = lambda: server.client.batches.retrieve(batch.id).status == "in_progress"  # noqa: E731
        assert eventually(is_asked)
        assert_stops_cleanly(server)


def test_hanging_renderers_do_not_delay_shutdown(tmp_path):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    command += ["--set", "server.num_renderers=1", "--set", "server.drain_timeout_s=1"]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        (pid,) = children_of(pid_of_pipeline(server), "vlmkit.assembly.renderer")
        os.kill(pid, signal.SIGSTOP)
        body = chat() | {"messages": [{"role": "user", "content": [image_part(image_url())]}]}
        with connect(server, http_request(body)):
            assert eventually(lambda: server.status() == 200)
            assert_stops_cleanly(server)
        assert not Path(f"/proc/{pid}").exists()
