"""Batches across restarts: the next process continues, and no line is lost or answered twice."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from running_server import eventually, image_url, process, scripted
from test_batches import entries, line, results_of, start_batch, wait_for_end

pytestmark = pytest.mark.posix

PROGRAM = textwrap.dedent("""
    import json, logging, os, sys
    from pathlib import Path
    logging.basicConfig(level=logging.INFO)
    sys.path += [sys.argv[1], str(Path(sys.argv[1]).parents[2] / "tests")]
    import msgspec
    from running_server import mock_pipeline
    from vlmkit_server.run import serve
    from vlmkit_server.settings.server import ServerSettings

    runner = mock_pipeline()
    submit = type(runner).asubmit

    async def poisoned(self, request, admit=None):
        if any("poison" in str(message.parts[0]) for message in request.messages):
            os.kill(os.getpid(), 9)
        return await submit(self, request, admit)

    type(runner).asubmit = poisoned
    serve({"mock": runner}, msgspec.convert(json.loads(sys.argv[2]), ServerSettings))
""")
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.02)
SLOW = scripted(text="x", tokens=5, latency_s=0.005)


def command(tmp_path, **data):
    settings = {"port": 0, "data": {"folder": str(tmp_path / "data")} | data}
    return [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), json.dumps(settings)]


@contextmanager
def server_process(tmp_path, **data):
    with process(command(tmp_path, **data), tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        yield server


def image_line(n, text=SLOW):
    """Return a line with an image."""
    content = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": image_url(8 + n % 7, 6)}},
    ]
    body = {"model": "mock", "messages": [{"role": "user", "content": content}]}
    return line(f"\u2028{n}", body)


def counts(server, batch):
    return server.client.batches.retrieve(batch.id).request_counts


@pytest.mark.slow
def test_restarts_and_kills_lose_no_line_and_answer_no_line_twice(tmp_path):
    lines = [image_line(n) for n in range(150)]
    lines[40]["body"]["temperature"] = 9
    with server_process(tmp_path, max_batch_requests=4) as server:
        batch = start_batch(server.client, lines)
        assert eventually(lambda: counts(server, batch).completed >= 10)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "cutting off" not in server.log.read_text()
    with server_process(tmp_path) as server:
        assert 10 <= counts(server, batch).completed < 100
        assert eventually(lambda: counts(server, batch).completed >= 50)
        late = start_batch(server.client, [image_line(n, ENDLESS) for n in range(30)], window="2s")
        unchecked = start_batch(server.client, [image_line(n) for n in range(30)])
        num_done = counts(server, batch).completed
        server.process.kill()
        server.process.wait()
        assert eventually(lambda: time.time() > late.expires_at)
    texts = [path.read_bytes().splitlines(keepends=True) for path in files(tmp_path)]
    before = max((each for each in texts if b"batch_req" in each[0]), key=len)[:num_done]
    assert len(before) == num_done
    with server_process(tmp_path) as server:
        batch = wait_for_end(server.client, batch)
        assert batch.status == "completed"
        found = results_of(server.client, batch)
        assert found.keys() == {f"\u2028{n}" for n in range(150)}
        (bad,) = entries(server.client, batch.error_file_id)
        assert bad["custom_id"] == "\u202840"
        after = server.client.files.content(batch.output_file_id).read()
        assert after.startswith(b"".join(before))  # answered lines were not sent to the model again
        assert (batch.request_counts.completed, batch.request_counts.failed) == (149, 1)
        assert wait_for_end(server.client, late).status == "expired"
        assert wait_for_end(server.client, unchecked).request_counts.completed == 30
        known = {file.id for file in server.client.files.list()}
        assert {path.name for path in files(tmp_path)} == known


def files(tmp_path):
    return list((tmp_path / "data/files").iterdir())


@pytest.mark.slow
def test_a_line_that_crashes_the_process_three_times_is_not_retried(tmp_path):
    lines = [line(str(n)) for n in range(20)]
    lines[7]["body"] = {"model": "mock", "messages": [{"role": "user", "content": "poison"}]}
    batch = None
    for _ in range(3):
        with process(command(tmp_path), tmp_path) as server:
            if batch is None:
                batch = start_batch(server.client, lines)
            assert server.process.wait(60) == -signal.SIGKILL
    with server_process(tmp_path) as server:
        batch = wait_for_end(server.client, batch)
        found = results_of(server.client, batch)
        assert found.keys() == {str(n) for n in range(20)}
        assert found.pop("7")["error"]["code"] == "server_error"
        assert {each["response"]["status_code"] for each in found.values()} == {200}


def test_stored_data_is_private_locked_to_one_server_and_survives_a_kill(tmp_path):
    with server_process(tmp_path) as server:
        sent = server.client.files.create(file=("a.txt", b"what it holds"), purpose="user_data")
        second = subprocess.run(command(tmp_path), capture_output=True, check=False, text=True)
        assert second.returncode != 0
        assert "is used by another process" in second.stderr
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        for path in [*files(tmp_path), *(tmp_path / "data").glob("*.sqlite3*")]:
            assert path.stat().st_mode & 0o777 == 0o600, path
        server.process.kill()
        server.process.wait()
    (tmp_path / "data/files/file-half").write_bytes(b"half")
    with server_process(tmp_path) as server:
        assert server.client.files.retrieve(sent.id) == sent
        assert server.client.files.content(sent.id).read() == b"what it holds"
        assert {path.name for path in files(tmp_path)} == {sent.id, "file-half"}  # foreign
        with pytest.raises(openai.NotFoundError):
            server.client.files.retrieve("file-half")


def memory(server, name):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="says how much memory a process has")
def test_large_batches_take_little_memory_and_a_huge_line_is_refused(tmp_path):
    pad = {str(n): "x" * 480 for n in range(8)}
    with (tmp_path / "lines.jsonl").open("wb") as file:
        for n in range(50_000):
            body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
            file.write(json.dumps(line(str(n), body | {"metadata": pad})).encode() + b"\n")
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.write(b'{"custom_id": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}')
    with server_process(tmp_path) as server:
        before = memory(server, "VmRSS")
        batch = start_batch_of_file(server.client, tmp_path / "lines.jsonl")
        assert eventually(lambda: counts(server, batch).completed >= 500)
        batch = server.client.batches.cancel(batch.id)
        batch = wait_for_end(server.client, batch)
        assert counts(server, batch).total == 50_000
        assert len(results_of(server.client, batch)) == 50_000
        assert memory(server, "VmHWM") - before < 50 * 2**20
        batch = wait_for_end(
            server.client, start_batch_of_file(server.client, tmp_path / "huge.jsonl")
        )
        assert [(e.code, e.line) for e in batch.errors.data] == [("line_too_long", 1)]
        assert memory(server, "VmHWM") - before < 250 * 2**20


def start_batch_of_file(client, path):
    sent = client.files.create(file=path, purpose="batch")
    return client.batches.create(
        input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
