"""The command line: its output, its errors, and how it stops."""

import io
import json
import math
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import pytest
from PIL import Image

import vlmkit
from vlmkit.cli import (
    config as config_command,
    models as models_command,
    output,
    run,
    vlmkit as group,
)
from vlmkit.cli.models import describe
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import BITS, weights_of
from vlmkit.plugins import machine
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import ReasoningDelta, TextDelta
from vlmkit_server.commands.serve import _example
from vlmkit_server.settings.server import ServerSettings

VLMKIT = [sys.executable, "-m", "vlmkit"]
HEAVY = {"numpy", "PIL", "litestar", "uvicorn", "torch", "transformers", "httpx2", "rich"}
SLOW = json.dumps({"mock": {"text": "tick ", "tokens": 4000, "latency_s": 0.02}})
PLUGIN_API = "from vlmkit.plugins.hookspecs import hookimpl\nVLMKIT_API = 1\n"
UNBUILDABLE = (
    f"{PLUGIN_API}"
    "def build(context):\n    raise AssertionError('built')\n"
    "@hookimpl\ndef vlmkit_register_engines(registry):\n    registry.add('broken', build)\n"
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("VLMKIT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), "red").save(file)
    return file


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start commands in separate processes whose standard streams are pipes."""
    with ExitStack() as stack:
        # Tests that run in the background may ignore Ctrl-C, and children would inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, before)

        def start(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = subprocess.Popen([*VLMKIT, *arguments], text=True, **(pipes | options))
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def read_until(stream: "IO[str] | None", wanted: str) -> str:
    """Read a pipe up to the first occurrence of ``wanted``."""
    assert stream is not None
    text = ""
    while wanted not in text:
        character = stream.read(1)
        assert character, f"ended before {wanted!r}: {text!r}"
        text += character
    return text


# vlmkit ask.


def test_standard_output_holds_only_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ask", "mock", "hello"]) == 0
    assert capsys.readouterr() == ("hello\n", "")


def test_images_come_from_files_urls_and_standard_input(
    capsys: pytest.CaptureFixture[str], image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BinaryInput(io.StringIO):
        buffer = io.BytesIO(image.read_bytes())

    monkeypatch.setattr(sys, "stdin", BinaryInput())
    url = "data:image/png;base64," + __import__("base64").b64encode(image.read_bytes()).decode()
    sources = ["--image", str(image), "--image", "-", "--image", url]
    sources += ["--image", image.as_uri(), "--image", f"FILE://localhost{image}"]
    assert run(["ask", "mock", "what?", *sources]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"image \d: 40x30 sha256:(\w+)", text)[:1] * 5 == re.findall(
        r"sha256:(\w+)", text
    )


def test_an_image_is_fetched_from_a_url_that_the_user_names(
    capsys: pytest.CaptureFixture[str], image: Path, image_url: str
) -> None:
    assert run(["ask", "mock", "what?", "--image", f"{image_url}/{image.name}"]) == 0
    assert "40x30" in capsys.readouterr().out


@pytest.fixture
def image_url(image: Path) -> Iterator[str]:
    """Serve the image's folder on a free loopback port; yield the URL of the image."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    server = subprocess.Popen(
        command, cwd=image.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    port = re.search(r"port (\d+)", read_until(server.stdout, "..."))
    assert port is not None
    yield f"http://127.0.0.1:{port[1]}"
    server.kill()
    server.communicate()


def test_json_output_has_the_answer_its_usage_and_its_timings(
    capsys: pytest.CaptureFixture[str], image: Path
) -> None:
    arguments = ["ask", "mock", "what?", "--image", str(image), "--json", "-m", "5"]
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "mock"
    assert report["finish_reason"] == "length"
    assert report["usage"]["completion_tokens"] == 5
    assert len(report["usage"]["image_tokens"]) == 1
    stages = {"prompt_s", "queue_s", "first_token_s", "decode_s"}
    assert set(report["timings"]) == stages | {"began_s", "images"}
    assert len(report["timings"]["images"]) == 1


THINKING = json.dumps({"mock": {"reasoning": "why\x1b[2J?", "text": "so"}})


def test_reasoning_is_not_printed_as_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", "mock", THINKING]) == 0
    assert capsys.readouterr() == ("so\n", "")
    assert run(["ask", "mock", THINKING, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["reasoning"], report["text"]) == ("why\x1b[2J?", "so")
    assert report["usage"]["reasoning_tokens"] == len("<why....?>")


def test_a_truncated_answer_is_reported_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ask", "mock", "hello", "--max-tokens", "4"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "hell\n"
    assert "stopped at the limit of 4 tokens" in shown.err


def test_settings_of_the_command_line_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", "mock", "hello", "--set", "engine.text=fixed"]) == 0
    assert capsys.readouterr().out == "fixed\n"


def test_ask_uses_the_model_of_a_config_with_its_own_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        "[[models]]\nname='a'\nmodel='mock'\nengine={text='from a'}\n"
        "[[models]]\nname='b'\nmodel='mock'\nengine={text='from b'}\n"
    )
    assert run(["ask", "b", "x", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "from b\n"


@pytest.mark.parametrize(
    ("arguments", "piped", "echoed"),
    [
        ([], "what is\nthis?\n", "what is\nthis?\n"),
        (["sum it up"], "some\nnotes\n", "some\nnotes\nsum it up\n"),
        (["alone"], "", "alone\n"),
        ([], "\ufeffwith a mark\r\n", "with a mark\n"),
    ],
)
def test_piped_text_is_the_question_or_precedes_it(
    start: Start, arguments: list[str], piped: str, echoed: str
) -> None:
    process = start("ask", "mock", *arguments, encoding="utf-8")
    assert process.communicate(piped) == (echoed, "")
    assert process.returncode == 0


@pytest.mark.posix
def test_a_file_is_a_question_and_a_terminal_or_closed_input_is_none(
    start: Start, tmp_path: Path
) -> None:
    import pty

    (tmp_path / "q.txt").write_text("from a file")
    with (tmp_path / "q.txt").open() as file:
        assert start("ask", "mock", stdin=file).communicate()[0] == "from a file\n"
    leader, follower = pty.openpty()
    closed = {"stdin": None, "preexec_fn": partial(os.close, 0)}
    for options in ({"stdin": follower}, {"stdin": subprocess.DEVNULL}, closed):
        assert start("ask", "mock", "alone", **options).communicate() == ("alone\n", "")
        process = start("ask", "mock", **options)
        assert "give a prompt" in process.communicate()[1]
        assert process.returncode == 2
    os.close(leader)
    os.close(follower)


def test_a_message_says_that_ask_waits_for_standard_input(start: Start) -> None:
    process = start("ask", "mock", "what is this?")
    read_until(process.stderr, "reading standard input to its end")
    assert process.communicate("notes")[0] == "notes\nwhat is this?\n"


def test_an_image_on_standard_input_is_no_question(start: Start, image: Path) -> None:
    with image.open() as file:
        process = start("ask", "mock", "what?", stdin=file)
        assert "--image - reads an image from it" in process.communicate()[1]
        assert process.returncode == 2
    with image.open() as file:
        process = start("ask", "mock", "what?", "--image", "-", stdin=file)
        assert "40x30" in process.communicate()[0]


def test_json_lines_have_an_answer_or_an_error_for_each_image_in_order(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.png").write_bytes(image.read_bytes())
    (folder / "07.png").write_text("no image")
    (folder / "09.png").write_bytes(image.read_bytes()[:60])
    arguments = ["ask", "mock", "what?", "--image", str(folder / "*.png"), "--jsonl", "-m", "9"]
    assert run(arguments) == 1
    shown = capsys.readouterr()
    assert shown.err == "30 images, 2 failed\n"
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [line["file"] for line in lines] == [str(folder / f"{n:02}.png") for n in range(30)]
    failed = {number: lines.pop(number) for number in (9, 7)}
    assert {line["error"]["code"] for line in failed.values()} == {"invalid_image"}
    assert "is broken" in failed[9]["error"]["message"]
    for line in lines:
        assert line["text"] == "image 1: "
        assert line["finish_reason"] == "length"
        assert line["usage"]["completion_tokens"] == 9


def test_json_lines_without_an_error_exit_with_0(
    capsys: pytest.CaptureFixture[str], image: Path, image_url: str
) -> None:
    sources = [str(image), f"{image_url}/{image.name}"]
    arguments = ["ask", "mock", "what?", "--jsonl", "--image", sources[0], "--image", sources[1]]
    assert run(arguments) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == sources
    assert all("40x30" in line["text"] for line in lines)


TOO_DEEP = b'{"not": ' * 70 + b"true" + b"}" * 70


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "a schema must be JSON"),
        (b"{'type': 'object'}", "a schema must be JSON"),
        (b'{"const": "\xff"}', "a schema must be JSON"),
        (b"[" * 500_000, "a schema must be JSON, of bounded depth"),
        (b'"object"', "a schema must be a JSON object, true or false"),
        (b'{"title": "%b"}' % (b"x" * 70_000), "over the limit of 65536 characters"),
        (b" " * 600_000 + b"{}", "over the limit of 65536 characters"),
        (b'{"minItems": 100001}', "minItems: 100001 is over the limit of 100000"),
        (TOO_DEEP, "depth of a schema"),
    ],
)
@pytest.mark.parametrize("lines", [[], ["--jsonl"]])
def test_an_invalid_schema_is_one_error_before_the_model_is_built(
    content: bytes,
    error: str,
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
    image: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    plugin = tmp_path / "unbuildable.py"
    plugin.write_text(UNBUILDABLE)
    settings = ["--set", f"plugins=['{plugin}']", "--set", "engine.use=broken"]
    arguments = ["ask", "mock", "x", "--image", str(image), "--schema", str(file), *lines]
    assert run([*arguments, *settings]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, hint = shown.err.splitlines()
    assert first.startswith(f"error: --schema: file {str(file)!r}: ")
    assert error in first
    assert hint == "hint: `vlmkit ask --help` shows how it is used"


@pytest.mark.parametrize("lines", [[], ["--json"], ["--jsonl"]])
def test_a_schema_that_nothing_enforces_is_one_error(
    lines: list[str], capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}')
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    images = ["--image", str(broken)] * (lines == ["--jsonl"]) + ["--image", str(image)]
    arguments = ["ask", "mock", "x", *images, "--schema", str(file), *lines]
    assert run([*arguments, "--set", "constraint.use=none"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    error, hint = shown.err.splitlines()
    assert error.startswith("error: no plugin is in use here")
    assert "vlmkit-guidance" in hint


def test_the_only_model_can_be_asked_without_its_name_and_is_named(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    only = ["--set", "plugins.only=['vlmkit-mock']"]
    assert run(["ask", "what is this?", "--image", str(image), *only]) == 0
    shown = capsys.readouterr()
    assert "40x30" in shown.out
    assert shown.err == "model: mock\n"
    file = tmp_path / "vlmkit.toml"
    file.write_text("[[models]]\nname='mine'\nmodel='mock'\n")
    assert run(["ask", "hello", "--config", str(file)]) == 0
    assert capsys.readouterr() == ("hello\n", "model: mine\n")
    assert run(["ask", "mine", "hello", "--config", str(file)]) == 0
    assert capsys.readouterr() == ("hello\n", "")


def test_several_files_and_patterns_follow_one_option(
    capsys: pytest.CaptureFixture[str], image: Path
) -> None:
    other = image.with_name("other.tif")
    Image.new("RGB", (9, 7), "teal").save(other)
    pattern = str(image.with_name("*.[pt]*"))
    for arguments in (
        ["--image", str(image), str(other), "mock", "what?"],
        ["mock", "what?", "--image", str(image), str(other)],
        ["mock", "--image", str(image), "what?", f"--image={other}"],
        ["mock", "what?", "--image", pattern],
    ):
        assert run(["ask", *arguments]) == 0
        shown = capsys.readouterr()
        assert "40x30" in shown.out
        assert "9x7" in shown.out
        assert shown.out.endswith("what?\n")


def test_pages_of_documents_are_passed_as_images(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pages = [Image.new("RGB", (9 + number, 7), "teal") for number in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert run(["ask", "mock", "what?", "--image", str(tmp_path / "a.tif")]) == 0
    shown = capsys.readouterr().out
    assert all(f"{9 + number}x7" in shown for number in range(3))


def test_help_states_the_default_number_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("ask", "chat"):
        assert run([command, "--help"]) == 0
        assert "by default the model's own limit" in " ".join(capsys.readouterr().out.split())


# Errors.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    "arguments", [["ask", "mock", "hello"], ["ask", "mock", "x", "--json"], ["plugins"], ["--help"]]
)
def test_output_that_cannot_be_written_is_one_error(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*VLMKIT, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        "error: the output cannot be written: No space left on device\n"
        "hint: make room there, or write elsewhere\n"
    )


@pytest.mark.parametrize("names", [[], ["ask"], ["models", "rm"]])
def test_help_is_also_a_command(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*names, "--help"]) == 0
    expected = capsys.readouterr().out
    assert run(["help", *names]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (["ask"], 2, "name a model", "mock"),
        (["ask", "mock"], 2, "give a prompt", ""),
        (["ask", "mok"], 2, "'mok' is not a model", "did you mean 'mock'?"),
        (["ask", "what is this?"], 2, "name a model", "mock"),
        (["ask", "mock", "x", "--image", "/none/*.png"], 1, "no file matches '/none/*.png'", ""),
        (["ask", "mok", "x"], 1, "model 'mok' is not a packaged name", "did you mean 'mock'?"),
        (["ask", "mock", "x", "--image", "/no.png"], 1, "file '/no.png' cannot be read", "check"),
        (["ask", "mock", "x", "--image", "file:///no%20a.png"], 1, "file '/no a.png' cannot", ""),
        (["ask", "mock", "x", "--image", "file://other/a.png"], 1, "on another machine", "copy it"),
        (
            ["ask", "mock", "x", "--image", "file:////other/a.png"],
            1,
            "no file by its whole",
            "name",
        ),
        (["ask", "mock", "x", "--image", "file:http://localhost/a"], 1, "no file by its", "name"),
        (["ask", "mock", "x", "--image", "file:-"], 1, "names no file by its whole path", "name"),
        (["ask", "mock", "x", "--image", "ftp://x/a.png"], 1, "cannot be read", "URLs of data:"),
        (["ask", "mock", "x", "--image", "http://127.0.0.1:9/a"], 1, "fetched: Conn", "address"),
        (["ask", "mock", "x", "--jsonl"], 2, "--jsonl needs --image", "vlmkit ask --help"),
        (["ask", "mock", "x", "--jsonl", "--image", "/none/*.png"], 1, "no file matches", "check"),
        (["ask", "mock", "x", "--schema", "/no.json"], 2, "file '/no.json' cannot be read", "help"),
        (["ask", "mock", "x", "--schema", "/"], 2, "file '/' cannot be read", "ask --help"),
        (["ask", "mock", "x", "-m", "0"], 2, "0 is not in the range", "x>=1"),
        (["ask", "mock", "x", "--temperature", "3"], 2, "3.0 is not in the range", "0<=x<=2"),
        (["ask", "mock", "x", "--set", "engin.use=x"], 2, "unknown setting", "'engine.use'"),
        (["ask", "mock", "x", "--set", "engine.use=x"], 2, "provides engine 'x'", ""),
        (["ask", "mock", "x", "--set", "engine.texxt=x"], 2, "no setting 'texxt'", "'text'"),
        (["ask", "mock", "x", "--config", "/no.toml"], 2, "config file '/no.toml' cannot", ""),
        (["ask", "mock", "x", "--nope"], 2, "no such option", "vlmkit ask --help"),
        (["serve", "mok"], 1, "model 'mok' is not a packaged name", "did you mean 'mock'?"),
        (["serve", "mock", "mock"], 2, "two models have one name", ""),
        (["serve", "mock", "--port", "65536"], 2, "server.port = 65536 (--port): exp", "65535"),
        (["serve", "mock", "--port", "web"], 2, "server.port = 'web' (--port): expected", ""),
        (["serve", "mock", "--log-format", "x"], 2, "(--log-format): expected one of text", ""),
        (["serve", "mock", "--host", ""], 2, "server.host = '' (--host): expected text", ""),
        (["serve", "mock", "--host", "0.0.0.0"], 2, "can be reached by other machines", "proxy"),
        (["doctor", "mok"], 1, "model 'mok' is not a packaged name", "did you mean 'mock'?"),
        (["models", "info", "./none"], 1, "model folder './none' does not exist", "check"),
        (["frobnicate"], 2, "no such command", "vlmkit --help"),
        (["models", "remove", "x"], 2, "'remove'. Did you mean 'rm'?", "vlmkit models --help"),
        (["models", "lits"], 2, "'lits'. Did you mean 'list'?", "vlmkit models --help"),
        (["models", "frobnicate"], 2, "no such command 'frobnicate'", "vlmkit models --help"),
        (["keys", "remove", "x"], 2, "'remove'. Did you mean 'revoke'?", "vlmkit keys --help"),
        (["run", "mock"], 2, "'run'. Did you mean 'ask'?", "vlmkit --help"),
        (["help", "frobnicate"], 2, "no such command 'frobnicate'", "vlmkit --help"),
        (["help", "ask", "mock"], 2, "'vlmkit ask' has no commands", "vlmkit ask --help"),
        (["serve", "--prot", "1"], 2, "no such option '--prot'", "--port"),
        (["keys", "add"], 2, "missing argument 'NAME'", "vlmkit keys add --help"),
    ],
)
def test_every_usage_error_is_one_sentence_with_an_exit_code(
    arguments: list[str],
    code: int,
    error: str,
    hint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert error in shown.err
    assert hint in shown.err
    lines = shown.err.splitlines()
    assert [line.partition(": ")[0] for line in lines] in (["error"], ["error", "hint"])


@pytest.mark.parametrize("command", [["serve"], ["ask"], ["keys", "add"]])
def test_help_shows_the_default_values(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    settings = ServerSettings()
    defaults: dict[str, dict[str, str]] = {
        "serve": {
            "--host": settings.host,
            "--port": str(settings.port),
            "--log-format": settings.log_format,
        },
        "ask": {"--temperature": "the model's", "--seed": "a random one"},
        "add": {"--scope": "chat and embed", "--file": "server.keys_file"},
    }
    for option, default in defaults[command[-1]].items():
        own = shown.partition(f"{option} ")[2].partition(" --")[0]
        assert f"default: ({default})" in own
    assert "TOML file of settings. [default: (VLMKIT_CONFIG)]" in shown


def test_an_invalid_image_is_named_before_the_model_is_built(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    invalid = tmp_path / "notes.png"
    invalid.write_text("no picture")
    plugin = tmp_path / "unbuildable.py"
    plugin.write_text(UNBUILDABLE)
    settings = ["--set", f"plugins=['{plugin}']", "--set", "engine.use=broken"]
    sources = ["--image", str(image), "--image", str(invalid)]
    assert run(["ask", "mock", "x", *sources, *settings]) == 1
    assert capsys.readouterr().err.startswith(f"error: {str(invalid)!r}: the file is a text, which")
    assert run(["ask", "mock", "x", *sources[:2], *settings]) == 1
    assert "AssertionError" in capsys.readouterr().err  # it is built for a valid image


def test_a_failing_engine_sets_an_exit_code_and_debug_shows_the_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = json.dumps({"mock": {"text": "abc", "crash_at_token": 1}})
    assert run(["ask", "mock", prompt]) == 3
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "hint: `vlmkit --debug ...` shows the cause" in shown
    assert run(["--debug", "ask", "mock", prompt]) == 3
    assert "the mock was told to crash" in capsys.readouterr().err


def test_a_bug_of_a_plugin_is_reported_as_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "buggy.py"
    file.write_text(
        f"{PLUGIN_API}@hookimpl\ndef vlmkit_register_engines(registry):\n"
        "    registry.add('buggy', lambda context: context.nothing)\n"
    )
    sets = ["--set", f'plugins=["{file}"]', "--set", "engine.use=buggy"]
    assert run(["ask", "mock", "x", *sets]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: engine 'buggy' from '{file}' could not be built: Attribute")
    assert "Traceback" not in shown
    command = [sys.executable, "-m", "vlmkit", "--debug", "ask", "mock", "x", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'buggy.py", line' in done.stderr


def test_vlmkit_without_a_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    shown = capsys.readouterr().out
    assert "First steps:" in shown
    for name in group.commands:
        assert name in shown


def test_the_printed_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"vlmkit, version {vlmkit.__version__}\n"


# Imports and output encoding.


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["serve", "--help"], ["models"]])
def test_commands_that_compute_nothing_import_no_heavy_library(arguments: list[str]) -> None:
    code = (
        "import sys; from vlmkit.cli import run; run(sys.argv[1:]);"
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_pipes_use_utf8_whatever_the_encoding_of_the_system(command: str) -> None:
    question = "naïve 東京 🙂"
    windows = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [*VLMKIT, command, "mock"],
        input=question.encode("utf-8-sig"),
        env=windows,
        capture_output=True,
        check=False,
    )
    assert (done.stdout.decode(), done.stderr) == (f"{question}\n", b"")


def test_output_to_a_pipe_has_no_colour(start: Start) -> None:
    for arguments in (["plugins"], ["ask", "mok", "x"]):
        process = start(*arguments)
        assert "\x1b" not in "".join(process.communicate())


# Stopping.


@pytest.mark.posix
def test_ctrl_c_ends_an_answer_without_a_traceback(start: Start) -> None:
    process = start("ask", "mock", SLOW, stdin=subprocess.DEVNULL)
    read_until(process.stdout, "tick")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert error.strip() == ""


def test_a_closed_pipe_ends_an_answer_without_a_traceback(start: Start) -> None:
    process = start("ask", "mock", SLOW, stdin=subprocess.DEVNULL)
    read_until(process.stdout, "tick")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert process.wait(300) != 0


@pytest.mark.posix
def test_ctrl_c_stops_the_answer_but_not_the_chat(start: Start) -> None:
    process = start("chat", "mock")
    assert process.stdin is not None
    process.stdin.write(f"{SLOW}\n")
    process.stdin.flush()
    read_until(process.stdout, "tick")
    process.send_signal(signal.SIGINT)
    process.stdin.write("still there?\n")
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "still there?" in printed


@pytest.mark.posix
def test_serve_prints_an_example_request_and_stops_on_a_signal(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = start(
        "serve", "mock", "--set", f"server.port={port}", "--set", "server.drain_timeout_s=300"
    )
    printed = read_until(process.stderr, 'api_key="none")\n')
    for stage in ("model files", "tokenizer", "media encoder", "engine", "sampler"):
        assert re.search(rf"{stage} +\d+\.\d\d s", printed)
    assert f"http://127.0.0.1:{port}/v1" in printed
    address = f"http://127.0.0.1:{port}/v1/models"
    with urllib.request.urlopen(address, timeout=300) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["mock"]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in error


def test_the_address_of_the_command_line_overrides_all_others(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[server]\nhost='192.0.2.1'\nport=1\n")
    others = {"VLMKIT_SERVER__HOST": "192.0.2.2", "VLMKIT_SERVER__PORT": "2"}
    sets = ("--set", "server.port=3", "--config", str(file))
    address = ("--host", "localhost", "--port", "0")
    process = start("serve", "mock", *address, *sets, env=os.environ | others)
    printed = read_until(process.stderr, "'mock' is ready\n")
    (url,) = re.findall(r"listening on (\S+)", printed)
    with urllib.request.urlopen(f"{url}/v1/models", timeout=300) as answer:
        assert json.load(answer)["data"]
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0


# vlmkit chat.


def test_a_piped_chat_answers_each_line_and_runs_its_commands(
    capsys: pytest.CaptureFixture[str], image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"one\n\n/image {image}\ntwo\n/reset\n/help\nthree\n/quit\nfour\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert run(["chat", "mock"]) == 0
    shown = capsys.readouterr()
    assert "40x30" in shown.out
    assert re.sub(r"image .*\n", "", shown.out) == "one\ntwo\nthree\n"
    assert "/reset" in shown.err


@pytest.mark.parametrize("refused", ["/none.png", "{folder}/page.html"])
def test_a_refused_image_also_drops_images_pending_for_the_next_message(
    refused: str,
    capsys: pytest.CaptureFixture[str],
    image: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "page.html").write_text("<html></html>")
    named = refused.format(folder=tmp_path)
    lines = f"/image {image}\n/image {named}\nwhat?\nagain?\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert run(["chat", "mock"]) == 0
    shown = capsys.readouterr()
    assert "40x30" not in shown.out
    assert "again?" in shown.out
    assert "the next message has no image" in shown.err
    assert f"error: {'file ' * (refused[1] == 'n')}{named!r}" in shown.err


def test_a_line_that_begins_with_a_path_is_a_question_and_an_unknown_command_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "/etc/hosts what is this\n/tmp is what?\n/imgae a.png\n/frobnicate\n/helpme\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert run(["chat", "mock"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "/etc/hosts what is this\n/tmp is what?\n"
    assert "unknown command '/imgae': did you mean /image?" in shown.err
    assert "error: unknown command '/frobnicate'\n" in shown.err
    assert "unknown command '/helpme': did you mean /help?" in shown.err


@pytest.mark.posix
def test_tab_completes_commands_and_paths(
    chat: Callable[..., "Terminal"], tmp_path: Path, image: Path
) -> None:
    pytest.importorskip("readline")
    folder = tmp_path / "holiday"
    folder.mkdir()
    (folder / "beach.png").write_bytes(image.read_bytes())
    terminal = chat()
    terminal.type("/im\tholi\tbea\t\n")
    terminal.wait_for("[40x30, added to the next message]")


def test_a_refused_message_does_not_change_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{'x' * 200}\nshort\n"))
    sets = ["--set", "engine.max_sequence_tokens=64"]
    assert run(["chat", "mock", *sets]) == 0
    shown = capsys.readouterr()
    assert shown.out == "short\n"
    assert "maximum context length is 64 tokens" in shown.err


@pytest.mark.posix
def test_a_terminal_chat_prompts_survives_ctrl_c_and_ends_with_ctrl_d(start: Start) -> None:
    leader, follower = os.openpty()
    process = start("chat", "mock", stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    terminal = Terminal(leader)
    terminal.wait_for("> ")
    terminal.type(f"{SLOW}\n")
    terminal.wait_for("tick tick")
    process.send_signal(signal.SIGINT)
    terminal.wait_for("> ")
    # Python's input() can miss a signal that arrives just before it waits.
    interrupt = partial(process.send_signal, signal.SIGINT)
    interrupt()
    terminal.wait_for("/quit ends the chat", nudge=interrupt)
    terminal.type("again\n")
    terminal.wait_for("again\r\nagain\r\n")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert process.wait(300) == 0
    os.close(leader)


@pytest.fixture
def chat(start: Start, tmp_path: Path) -> Iterator[Callable[..., "Terminal"]]:
    """Start a chat with the mock in a pseudo-terminal, and end it."""
    with ExitStack() as stack:

        def chat(**environment: str) -> Terminal:
            leader, follower = os.openpty()
            stack.callback(os.close, leader)
            ends = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
            environment = {**os.environ, "TERM": "xterm", **environment}
            process = start("chat", "mock", env=environment, cwd=tmp_path, **ends)
            os.close(follower)
            terminal = Terminal(leader)
            stack.callback(process.wait, 30)
            stack.callback(terminal.type, "\n/quit\n")
            terminal.wait_for("> ")
            return terminal

        yield chat


@pytest.mark.posix
@pytest.mark.parametrize("has_readline", [True, False])
def test_lines_pasted_together_are_one_message(
    chat: Callable[..., "Terminal"], tmp_path: Path, has_readline: bool
) -> None:
    (tmp_path / "readline.py").write_text("raise ImportError")
    path = "" if has_readline else f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    terminal = chat(**({"PYTHONPATH": path} if path else {}))
    for _ in range(2):
        terminal.paste("/def one():\n\n    pass\n")
        if has_readline:
            terminal.type("\n")
        terminal.wait_for("\r\n/def one():\r\n\r\n    pass\r\n> ")  # the answer, after the echo
    terminal.type("one\n")
    terminal.wait_for("one\r\none\r\n")


@pytest.mark.posix
def test_a_dropped_or_quoted_path_is_an_image_of_the_message_or_the_next(
    chat: Callable[..., "Terminal"], tmp_path: Path
) -> None:
    file = tmp_path / "my cat é.png"
    Image.new("RGB", (40, 30), "red").save(file)
    forms = (f"'{file}' ", f'"{file}"', str(file).replace(" ", "\\ "), file.as_uri(), str(file))
    terminal = chat()
    for written in (*forms, *(f"/image {form}" for form in forms)):
        terminal.type(f"{written}\n")
        terminal.wait_for("[40x30, added to the next message]")
        terminal.wait_for("> ")
        terminal.type("what?\n")
        terminal.wait_for("image 1: 40x30")
        terminal.wait_for("\r\nwhat?\r\n> ")
        terminal.type("/reset\n")
        terminal.wait_for("> ")
    terminal.type(f"{forms[0]}what's this?\n")
    terminal.wait_for("image 1: 40x30")
    terminal.wait_for("\r\nwhat's this?\r\n> ")
    terminal.type("'/none.png'\n")
    terminal.wait_for("file '/none.png' cannot be read")


class Terminal:
    """The other side of a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = ""
        self._marks_pastes = False

    def paste(self, text: str) -> None:
        """Send pasted text, marked if the program turned bracketed paste on."""
        self.type(f"\x1b[200~{text}\x1b[201~" if self._marks_pastes else text)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, wanted: str, nudge: Callable[[], None] = lambda: None) -> None:
        """Read until ``wanted`` appears; call ``nudge`` after each second without text."""
        deadline = time.monotonic() + 300
        while wanted not in self._text:
            assert time.monotonic() < deadline, self._text
            if select.select([self._descriptor], [], [], 1.0)[0]:
                self._text += os.read(self._descriptor, 4096).decode(errors="replace")
                self._strip_paste_modes()
            else:
                nudge()
        self._text = self._text.partition(wanted)[2]

    def _strip_paste_modes(self) -> None:
        """Record the bracketed paste mode, and remove its control sequences from the text."""
        if printed := re.findall(r"\x1b\[\?2004([hl])", self._text):
            self._marks_pastes = printed[-1] == "h"
        self._text = re.sub(r"\x1b\[\?2004[hl]\r?", "", self._text)


def test_control_characters_of_an_answer_are_not_written_to_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    answer = output.Answer()
    answer.write(Chunk(0, (ReasoningDelta("wh\x1b[2J"),)))
    answer.write(Chunk(0, (ReasoningDelta("y?\x9b1m"),)))
    answer.write(Chunk(0, (TextDelta("a\x1b[2Jb\x07\x9b1mc\td\ne\r"),)))
    shown = capsys.readouterr()
    assert shown.out == "a[2Jb1mc\td\ne"
    assert re.sub(r"\x1b\[[02]m", "", shown.err) == "wh[2Jy?1m\n\n"


# Plugins, doctor, config.


def test_plugins_shows_usable_providers_and_why_others_are_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "toy.py"
    file.write_text(
        f"{PLUGIN_API}@hookimpl\ndef vlmkit_register_engines(registry):\n"
        "    registry.add('toy', lambda c: c, why_not=lambda: 'no such device')\n"
        "    registry.add('odd', lambda c: c, why_not=lambda: 1 / 0, priority=lambda m: 1)\n"
    )
    arguments = ["plugins", "--set", f'plugins=["{file}"]']
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("engine") and line.endswith("no such device") for line in lines)
    assert any(" odd " in line and "ZeroDivisionError" in line for line in lines)
    assert any(" mock " in line and line.endswith("usable") for line in lines)
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    toy = next(p for p in report["providers"] if p["name"] == "toy")
    assert toy["reason"] == "no such device"
    assert toy["plugin"] == str(file)
    builtin = next(p for p in report["providers"] if p["plugin"] == "vlmkit")
    assert builtin["version"] == vlmkit.__version__
    assert builtin["priority"] == 10
    assert next(p for p in report["providers"] if p["name"] == "odd")["priority"] == "by model"


def test_plugins_lists_a_broken_plugin_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "misspelt_plugin.py").write_text(
        f"{PLUGIN_API}@hookimpl\ndef vlmkit_register_sampler(registry):\n    pass\n"
    )
    info = tmp_path / "misspelt-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[vlmkit]\nmisspelt = misspelt_plugin\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misspelt\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["plugins"]) == 0
    assert (
        "plugin 'misspelt' of misspelt 1.0 could not be loaded: there is no hook "
        "'vlmkit_register_sampler'\n"
        "  hint: did you mean 'vlmkit_register_samplers'?\n"
    ) in capsys.readouterr().out


def test_a_broken_plugin_file_stops_serving_commands_but_not_diagnostic_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 // 0")
    sets = ["--set", f"plugins=['{file}']"]
    printed = "could not be loaded: ZeroDivisionError: integer division or modulo by zero"
    for command in (["plugins"], ["doctor"], ["doctor", "mock"]):
        assert run([*command, *sets]) == 0
        assert printed in capsys.readouterr().out
    for command in (["config", "show"], ["config", "schema"]):
        assert run([*command, *sets]) == 0
        assert capsys.readouterr().out
    for command in (["config", "check"], ["ask", "mock", "hi"], ["serve", "mock"]):
        assert run([*command, *sets]) == 1
        assert f"error: plugin file {str(file)!r} {printed}" in capsys.readouterr().err


def test_plugins_lists_blocked_plugins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMKIT_BLOCK", "mock")
    assert run(["plugins"]) == 0
    assert "excluded by VLMKIT_BLOCK: vlmkit-mock" in capsys.readouterr().out


def test_plugins_outside_the_list_are_left_out_of_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vlmkit_hf")
    sets = ["--set", "plugins.only=['vlmkit-hf']"]
    assert run(["plugins", *sets]) == 0
    assert "excluded by plugins.only: vlmkit-mock" in capsys.readouterr().out
    assert run(["plugins", "--json", *sets]) == 0
    found = {p["source"]: p for p in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["vlmkit-mock"]["unlisted"]
    assert not found["vlmkit-hf"]["unlisted"]
    assert isinstance(found["vlmkit-hf"]["sha256"], str)
    assert run(["ask", "mock", "x", *sets]) != 0
    assert "plugins.only excludes plugin 'mock' of vlmkit-mock" in capsys.readouterr().err
    assert run(["plugins", "--set", "plugins.only=['vlmkit-mok']"]) == 2
    assert "did you mean 'vlmkit-mock'?" in capsys.readouterr().err
    monkeypatch.setenv("VLMKIT_PLUGINS__ONLY", "['vlmkit-nothing']")
    assert run(["mcp"]) == 2  # a command of a plugin


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8000/v1"),
        ({"host": "::", "allowed_hosts": ("models.example",)}, "http://models.example:8000/v1"),
        ({"host": "10.0.0.1"}, "http://10.0.0.1:8000/v1"),
    ],
)
def test_serve_prints_an_example_with_an_address_that_clients_can_reach(
    settings: dict[str, Any], address: str
) -> None:
    assert address in _example(ServerSettings(**settings), "mock")


def test_doctor_shows_the_chosen_provider_and_why_others_are_not_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "toy.py"
    file.write_text(
        f"{PLUGIN_API}@hookimpl\ndef vlmkit_register_engines(registry):\n"
        "    registry.add('blind', lambda c: c, cannot_serve=lambda c: 'it is blind')\n"
        "    registry.add('spare', lambda c: c, priority=-1, cannot_serve=lambda c: None)\n"
    )
    sets = ["--set", f'plugins=["{file}"]']
    assert run(["doctor", "mock", "--json", *sets]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["vlmkit"] == vlmkit.__version__
    engines = {v["provider"]: v for v in report["verdicts"] if v["component"] == "engine"}
    assert engines["mock"]["is_chosen"]
    assert engines["blind"]["reason"] == "it is blind"
    assert engines["spare"]["reason"] == "able, but not preferred"
    assert (engines["spare"]["priority"], engines["blind"]["priority"]) == (-1, None)
    assert run(["doctor", "mock", *sets]) == 0
    assert re.search(r"engine +mock +chosen\n", capsys.readouterr().out)


def test_doctor_lists_ignored_values_of_generation_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    stated = {
        "num_beams": 4,
        "do_sample": True,
        "temperature": 7.5,
        "top_p": 0.9,
        "num_beam_groups": 1,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert run(["doctor", str(tmp_path), "--json"]) == 1
    found = {e["field"]: e for e in json.loads(capsys.readouterr().out)["generation_config"]}
    assert found.keys() == {"num_beams", "temperature"}
    assert found["num_beams"]["value"] == "4"
    assert "no beam search" in found["num_beams"]["reason"]
    assert run(["doctor", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"num_beams +4 +there is no beam search", out)
    assert re.search(r"temperature +7\.5 +temperature: Expected `float` <= 2\.0", out)
    assert run(["doctor", "mock"]) == 0
    assert "generation_config" not in capsys.readouterr().out


def test_doctor_examines_the_provider_that_would_be_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "toy.py"
    file.write_text(
        f"{PLUGIN_API}from vlmkit.errors import ConfigError\n"
        "def refuse(context):\n"
        "    raise ConfigError('there is no such device', hint='name another')\n\n"
        "@hookimpl\ndef vlmkit_register_engines(registry):\n"
        "    registry.add('able', lambda c: c, cannot_serve=lambda c: None,\n"
        "        examine=lambda c: f'fast for {c.files.name}')\n"
        "    registry.add('picky', lambda c: c, cannot_serve=lambda c: None, examine=refuse)\n"
    )
    sets = ["--set", f'plugins=["{file}"]']
    assert run(["doctor", "mock", *sets, "--set", "engine.use=able"]) == 0
    assert re.search(r"engine +able +chosen: fast for mock\n", capsys.readouterr().out)
    assert run(["doctor", "mock", *sets, "--set", "engine.use=picky"]) == 1
    refusal = "refuses: there is no such device; name another"
    assert re.search(rf"engine +picky +{refusal}\n", capsys.readouterr().out)
    assert run(["doctor", "mock", "--json", *sets, "--set", "engine.use=picky"]) == 1
    report = json.loads(capsys.readouterr().out)
    verdicts = report["verdicts"]
    assert report["unserved"] == ["engine"]
    (picky,) = (v for v in verdicts if v["provider"] == "picky")
    assert (picky["is_chosen"], picky["how"], picky["reason"]) == (False, "", refusal)


def test_doctor_reports_a_model_that_no_provider_can_serve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    assert run(["doctor", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert re.search(r"engine +none +no installed provider can serve this model", shown.out)
    assert re.search(r"media_encoder +none +chosen", shown.out)  # the model takes no images
    assert "no tokenizer and no engine here can serve model" in shown.err


def test_doctor_says_which_configured_provider_is_not_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = (
        "runner.use = 'replica': no installed plugin provides runner 'replica'; "
        "did you mean 'replicas'?"
    )
    assert run(["doctor", "mock", "--set", "runner.use=replica"]) == 1
    shown = capsys.readouterr()
    assert re.search(rf"runner +replica +{re.escape(problem)}", shown.out)
    assert shown.err.strip() == f"error: {problem}"


def test_doctor_examines_the_components_that_a_model_of_the_config_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "vlmkit.toml"
    file.write_text('[[models]]\nmodel = "mock"\nname = "two"\nrunner = { use = "replicas" }\n')
    assert run(["doctor", "two", "--config", str(file)]) == 0
    assert re.search(r"runner +replicas +chosen\n", capsys.readouterr().out)
    assert run(["doctor", "mock", "--config", str(file)]) == 0
    assert "replicas" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("system", "processor", "gpu", "support"),
    [
        ("linux", "x86_64", None, "tested on such systems"),
        ("linux", "x86_64", "an NVIDIA GPU", "tested on such systems; never run on a real GPU"),
        ("linux", "aarch64", None, "written for such systems, and never run on one"),
        ("win32", "AMD64", None, "written for such systems, and never run on one"),
    ],
)
def test_doctor_says_whether_vlmkit_was_tested_on_such_a_machine(
    system: str,
    processor: str,
    gpu: str | None,
    support: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(machine, "_devices", lambda: [gpu] if gpu else [])
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["support"] == support


def test_doctor_without_a_model_describes_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "python" in shown
    assert "memory" in shown


def test_config_show_prints_every_value_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMKIT_ENGINE__HUB_TOKEN", "t0ps3cret")
    assert run(["config", "show", "--set", "server.port=9000"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"server\.port +9000 +--set server\.port\n", shown)
    assert re.search(r"server\.host +\"127\.0\.0\.1\" +default\n", shown)
    assert re.search(r"engine\.hub_token +\"\*\*\*\" +environment", shown)
    assert "t0ps3cret" not in shown


def test_config_show_prints_the_defaults_of_a_provider_chosen_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["config", "show", "--json", "--set", "engine.use=mock"]) == 0
    settings = {s["setting"]: s for s in json.loads(capsys.readouterr().out)}
    assert settings["engine.block_tokens"]["origin"] == "default of 'mock'"
    assert settings["engine.block_tokens"]["description"]


def test_config_check_reports_a_misspelt_setting_of_a_provider(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["config", "check", "--set", "engine.use=mock"]) == 0
    assert capsys.readouterr().out == "valid: 1 settings, the rest by default\n"
    assert run(["config", "check", "--set", "engine.use=mock", "--set", "engine.txt=x"]) == 2
    assert "did you mean 'text'?" in capsys.readouterr().err


def test_config_check_reports_all_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("server.prot=1", "server.port=x", "engine.use=mock", "engine.txt=x")
    options = [word for each in wrong for word in ("--set", each)]
    assert run(["config", "check", *options, "--set", 'plugins.files=["/no.py"]']) == 2
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(printed) == 4
    for line, words in zip(
        printed,
        ("'server.prot'", "server.port = 'x'", "plugin file '/no.py'", "'txt'"),
        strict=True,
    ):
        assert words in line


def test_config_schema_prints_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["server"]["properties"]["port"]["maximum"] == 65535


# Models.

HUB = (
    PLUGIN_API
    + """
from pathlib import Path
from vlmkit.kit.checkpoint import Checkpoint

def fetch(context):
    folder = Path(__file__).parent / "hub" / context.reference / (context.revision or "main")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return Checkpoint(context.reference, folder, context.revision)

def not_an_id(reference):
    return None if "/" in reference else "a hub id reads owner/name"

def fetched():
    return sorted(f"own/{p.name}" for p in Path(__file__).parent.glob("hub/own/*"))

@hookimpl
def vlmkit_register_models(registry):
    registry.add("hub", fetch, cannot_serve=not_an_id, list_models=fetched)
"""
)


def test_a_pulled_model_is_listed_and_described(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "hub.py"
    file.write_text(HUB)
    sets = ["--set", f'plugins=["{file}"]']
    assert run(["models", "info", "own/model", *sets]) == 1
    assert "hint: vlmkit models pull own/model" in capsys.readouterr().err
    assert run(["models", "pull", "own/model", "--revision", "v2", *sets]) == 0
    assert capsys.readouterr().out.strip().endswith("own/model/v2")
    assert run(["models", "list", "--json", *sets]) == 0
    listed = {row["model"]: row["source"] for row in json.loads(capsys.readouterr().out)}
    assert listed["own/model"] == str(file)
    assert listed["mock"] == "vlmkit-mock"
    assert run(["models", "info", "own/model", *sets]) == 0
    assert re.search(r"name +own/model\n", capsys.readouterr().out)


def safetensors(folder: Path, name: str, **tensors: tuple[str, list[int]]) -> None:
    """Write a file whose header describes tensors; their values are not read."""
    described, end = {}, 0
    for key, (dtype, shape) in tensors.items():
        begin, end = end, end + BITS[dtype] // 8 * math.prod(shape)
        described[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps({"__metadata__": {"format": "pt"}, **described}).encode()
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 10)


def test_parameters_are_counted_from_the_headers_of_the_files_in_use(tmp_path: Path) -> None:
    safetensors(tmp_path, "a.safetensors", w=("BF16", [3, 4]), b=("F32", []))
    safetensors(tmp_path, "b.safetensors", v=("BF16", [5]))
    safetensors(tmp_path, "unused.safetensors", w=("F64", [100]))
    index = {"weight_map": {"w": "a.safetensors", "b": "a.safetensors", "v": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = weights_of(Checkpoint("m", tmp_path))
    assert weights.num_by_dtype == {"BF16": 17, "F32": 1}
    assert weights.num_parameters == 18
    assert weights.files == ("a.safetensors", "b.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]", b'\x0b\0\0\0\0\0\0\0{"a": {"b"}}']
)
def test_a_broken_weight_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'model\.safetensors' of model 'm' is not"):
        weights_of(Checkpoint("m", tmp_path))


def test_a_missing_weight_file_of_the_index_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"'a\.safetensors' of model 'm' is missing"):
        weights_of(Checkpoint("m", tmp_path))


def test_a_model_is_described_from_its_small_files(tmp_path: Path) -> None:
    config = {
        "model_type": "llava",
        "architectures": ["Llava"],
        "text_config": {"max_position_embeddings": 4096},
        "max_position_embeddings": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    safetensors(tmp_path, "model.safetensors", w=("F16", [2, 2]))
    facts = describe(Checkpoint("m", tmp_path))
    assert facts["family"] == "llava"
    assert facts["context_tokens"] == 4096
    assert facts["has_chat_template"]
    assert facts["parameters"] == 4
    assert facts["weight_files"] == 1


def test_sizes_are_printed_in_a_suitable_unit() -> None:
    assert [output.size(n) for n in (0, 1023, 1024, 1536 * 2**20)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 GiB",
    ]


DOCS = Path(__file__).parents[3] / "docs"


def test_commands_of_the_guide_that_use_the_mock_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "how-to/configure.md").read_text()
    lines = [
        line
        for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
        if "mock" in line or "config show" in line
    ]
    assert len(lines) == 2
    for line in lines:
        command = line.replace("vlmkit ", f"{sys.executable} -m vlmkit ")
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, capture_output=True)


def test_every_command_has_a_description() -> None:
    commands: list[click.Command] = [
        *group.commands.values(),
        *models_command.models.commands.values(),
    ]
    for command in commands:
        assert command.help
        assert "\\" not in command.get_help(click.Context(command))
        assert len(command.get_short_help_str(200).split()) > 2


@pytest.mark.parametrize(
    "commands", [group, models_command.models, config_command.config], ids=lambda c: c.name
)
def test_no_line_of_a_list_of_commands_is_cut_off_at_eighty_columns(commands: click.Group) -> None:
    context = click.Context(commands, info_name=commands.name, terminal_width=80)
    _, _, listed = commands.get_help(context).partition("Commands:\n")
    assert len(listed.splitlines()) >= 3
    assert not [line for line in listed.splitlines() if line.endswith("...")]
