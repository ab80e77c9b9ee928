"""``vlmkit mcp`` as a process, with the official client over standard input and output."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import PIL.Image
import pytest
from mcp_client import Start, SyncClient, connected, shown, texts

SLOW = '{"mock": {"text": "a", "tokens": 4000, "latency_s": 0.02}}'
NOISY = """
import os
from pathlib import Path
import vlmkit
import vlmkit_mock.plugin
from vlmkit.kit.checkpoint import Checkpoint

VLMKIT_API = (1, 0)

def build(context):
    print("printed", flush=True)
    os.system("echo said by a child")
    return Checkpoint("mock", Path(vlmkit_mock.plugin.__file__).with_name("model"))

@vlmkit.hookimpl
def vlmkit_register_models(registry):
    registry.add("noisy", build)
"""


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two images and other files, beside a secret file."""
    root = tmp_path_factory.mktemp("album")
    folder = root / "pictures"
    (folder / "more").mkdir(parents=True)
    PIL.Image.new("RGB", (8, 6), "teal").save(folder / "teal.png")
    PIL.Image.new("RGB", (5, 7), "navy").save(folder / "more" / "navy.png")
    PIL.Image.new("RGB", (9, 9), "red").save(root / "secret.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def client(start: Start, album: Path) -> Iterator[SyncClient]:
    with start("mock", "--folder", str(album)) as client:
        yield client


def test_the_tool_describes_its_arguments(client: SyncClient, album: Path) -> None:
    (tool,) = client.portal.call(client.client.list_tools).tools
    assert tool.name == "ask_about_image"
    assert str(album.resolve()) in (tool.description or "")
    assert "https" not in (tool.description or "")
    assert tool.input_schema["required"] == ["question", "images"]
    assert tool.input_schema["type"] == "object"


def test_images_are_in_order_for_all_kinds_of_names(client: SyncClient, album: Path) -> None:
    grey = PIL.Image.new("RGB", (4, 4), "grey")
    grey.save(album / "grey.png")
    url = "data:image/png;base64," + base64.b64encode((album / "grey.png").read_bytes()).decode()
    result = client.ask("What are these?", "teal.png", str(album / "more/navy.png"), url)
    assert not result.is_error
    images = [PIL.Image.open(album / "teal.png"), PIL.Image.open(album / "more/navy.png"), grey]
    lines = [f"image {n}: {shown(image)}" for n, image in enumerate(images, start=1)]
    assert texts(result) == ["\n".join([*lines, "What are these?"])]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../secret.png", "images[0]: it is not a file that may be read"),
        ("{album}/../secret.png", "images[0]: it is not a file that may be read"),
        ("none.png", "images[0]: it is not a file that may be read"),
        ("more", "images[0]: it is not a file that may be read"),
        ("", "images[0]: it is not a file that may be read"),
        ("a\0b", "images[0]: it is not a file that may be read"),
        ("x" * 300, "images[0]: it is not a file that may be read"),
        ("a/" * 1_000_000, "images[0]: it is not a file that may be read"),
        ("file://{album}/teal.png", "images[0]: it is not a file that may be read"),
        ("notes.txt", "images[0]: image is "),
        ("data:image/png;base64,####", "images[0]: the data: URL's content is not valid base64"),
        ("http://127.0.0.1/a.png", "images[0]: URLs are not fetched here"),
        ("https://example.org/a.png", "images[0]: URLs are not fetched here"),
    ],
)
def test_a_forbidden_file_is_a_tool_error(
    client: SyncClient, album: Path, name: str, said: str
) -> None:
    result = client.ask("What is this?", name.format(album=album))
    assert result.is_error
    assert texts(result)[0].startswith(said)
    assert len(texts(result)[0]) < 500 + len(str(album))


@pytest.mark.posix
def test_links_out_of_a_folder_and_pipes_are_refused(client: SyncClient, album: Path) -> None:
    (album / "out.png").symlink_to(album.parent / "secret.png")
    (album / "out").symlink_to(album.parent)
    (album / "loop.png").symlink_to(album / "loop.png")
    (album / "in.png").symlink_to("more/navy.png")
    os.mkfifo(album / "pipe.png")
    for name in ("out.png", "out/secret.png", "loop.png", "pipe.png"):
        assert client.ask("What is this?", name).is_error, name
    assert not client.ask("What is this?", "in.png").is_error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "Object missing required field `question`"),
        ({"question": "What?"}, "Object missing required field `images`"),
        ({"question": "What?", "images": []}, "length >= 1"),
        ({"question": "", "images": ["teal.png"]}, "length >= 1"),
        ({"question": "What?", "images": ["teal.png"] * 17}, "17 images are over the limit of 16"),
        ({"question": "What?", "images": ["teal.png"], "max_tokens": 0}, "`int` >= 1"),
        ({"question": "What?", "images": "teal.png"}, "Expected `array`"),
        ({"question": "What?", "images": ["teal.png"], "size": 1}, "unknown field `size`"),
        ({"question": "?", "images": ["teal.png"], "max_tokens": 10**6}, "maximum context length"),
    ],
)
def test_invalid_arguments_are_a_tool_error(
    client: SyncClient, arguments: dict[str, object], said: str
) -> None:
    result = client.call(arguments)
    assert result.is_error
    assert said in texts(result)[0]


def test_a_truncated_answer_is_marked(client: SyncClient) -> None:
    result = client.ask('{"mock": {"text": "abcdef"}}', "teal.png", max_tokens=3)
    assert texts(result) == ["abc", "[the answer was cut off at the limit of tokens]"]


def test_a_failed_answer_is_a_tool_error_and_affects_no_other(client: SyncClient) -> None:
    result = client.ask('{"mock": {"text": "abc", "fail_at_token": 1}}', "teal.png")
    assert result.is_error
    assert texts(client.ask('{"mock": {"text": "abc"}}', "teal.png")) == ["abc"]


def test_calls_run_concurrently_and_can_be_cancelled(client: SyncClient) -> None:
    first = client.portal.start_task_soon(client.ask_async, SLOW, "teal.png")
    assert texts(client.ask('{"mock": {"text": "quick"}}', "teal.png")) == ["quick"]
    first.cancel()
    assert texts(client.ask('{"mock": {"text": "quick"}}', "teal.png")) == ["quick"]


def test_other_protocol_versions_work_and_settings_apply(
    start: Start, album: Path, tmp_path: Path
) -> None:
    config = tmp_path / "vlmkit.toml"
    config.write_text('[engine]\nuse = "mock"\ntext = "abcdef"\n')
    arguments = ("mock", "--folder", str(album), "--config", str(config), "-m", "4")
    with start(*arguments, mode="legacy") as client:
        assert texts(client.ask("What is this?", "teal.png"))[0] == "abcd"
        refused = client.ask("What is this?", "teal.png", max_tokens=5)
        assert texts(refused) == ["max_tokens is over the limit of 4"]


def test_each_call_reports_that_the_model_cannot_be_loaded(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start("mok", log=log) as client:
        for _ in range(2):
            result = client.ask("What is this?", "teal.png")
            assert result.is_error
            assert texts(result)[0].startswith("model 'mok' is not a packaged name")
            assert "did you mean 'mock'?" in texts(result)[0]
    assert log.read_text().startswith("error: model 'mok' is not a packaged name")


@pytest.mark.posix
def test_standard_output_has_the_protocol_alone_and_its_end_ends_the_process(
    tmp_path: Path, album: Path
) -> None:
    plugin = tmp_path / "noisy.py"
    plugin.write_text(NOISY)
    command = [sys.executable, "-m", "vlmkit", "mcp", "noisy", "--folder", str(album)]
    environ = dict(os.environ) | {"VLMKIT_PLUGINS": json.dumps([str(plugin)])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, **pipes, text=True) as process:  # type: ignore[call-overload]
        info = {"protocolVersion": "2025-06-18", "capabilities": {}}
        for message in (
            {"id": 1, "method": "initialize", "params": info | {"clientInfo": NAMED}},
            {"method": "notifications/initialized"},
            called(2, {"question": "What is this?", "images": ["teal.png"]}),
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        process.stdin.write("this is no message\n")
        process.stdin.flush()
        said = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [message["id"] for message in said] == [1, 2]
        assert not said[1]["result"].get("isError")
        slow_call = called(3, {"question": SLOW, "images": ["teal.png"]})
        process.stdin.write(json.dumps({"jsonrpc": "2.0"} | slow_call) + "\n")
        rest, errors = process.communicate(timeout=300)  # closes its input
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())
        assert "printed" in errors
        assert "said by a child" in errors
        assert "Traceback" not in errors
        assert process.returncode == 0


NAMED = {"name": "test", "version": "0"}


def called(number: int, arguments: dict[str, object]) -> dict[str, object]:
    params = {"name": "ask_about_image", "arguments": arguments}
    return {"id": number, "method": "tools/call", "params": params}


@pytest.mark.posix
def test_http_accepts_only_clients_of_this_machine(album: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "vlmkit", "mcp", "mock", "--folder", str(album), "--port", "0"]
    with log.open("w") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            while not (found := re.search(r"listening on (\S+)", log.read_text())):
                assert process.poll() is None
                time.sleep(0.02)
            with connected(found[1]) as client:
                assert texts(client.ask('{"mock": {"text": "hello"}}', "teal.png")) == ["hello"]
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
                refused = httpx2.post(found[1], json={}, headers=headers, trust_env=False)
                assert refused.status_code in (403, 421)
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()


@pytest.mark.posix
def test_an_interrupt_ends_the_process_at_once() -> None:
    command = [sys.executable, "-m", "vlmkit", "mcp", "mock"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        process.stdout.readline()  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == -signal.SIGINT
