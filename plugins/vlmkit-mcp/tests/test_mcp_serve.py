"""``vlmkit serve`` with tools of an MCP server, through the OpenAI API."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.posix

CONFIG = """
[tool_sources]
use = ["mcp"]

[tool_sources.mcp.servers.own]
command = {command}
tools = ["show", "say", "die"]
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("served")
    program = [sys.executable, str(Path(__file__).with_name("tool_server.py"))]
    config, log = folder / "vlmkit.toml", folder / "log"
    config.write_text(CONFIG.format(command=json.dumps(program)))
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    with (
        log.open("wb") as log_file,
        subprocess.Popen([*command, "--config", str(config)], stderr=log_file) as process,
    ):
        try:
            while not re.search(r"'mock' is ready\n", log.read_text()):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            url = re.search(r"listening on (\S+)", log.read_text())
            assert url is not None
            with openai.OpenAI(base_url=f"{url[1]}/v1", api_key="none", max_retries=0) as client:
                yield client
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()
    assert "never retrieved" not in log.read_text()


def ask(client: openai.OpenAI, name: str, arguments: dict[str, Any], **options: Any) -> Any:
    script = {"mock": {"text": "I look.", "calls": [{"name": name, "arguments": arguments}]}}
    return client.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": json.dumps(script)}],
        extra_body={"server_tools": [name]},
        **options,
    )


def test_the_model_gets_the_image_of_a_tool(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "own_show", {}).choices
    assert choice.finish_reason == "stop"
    assert re.match(r"I look\.\n\nimage 1: 8x6 sha256:[0-9a-f]{16}\n", choice.message.content)


def test_a_crashed_tool_fails_one_call_and_the_stream_continues(client: openai.OpenAI) -> None:
    for name, arguments, expected in (
        ("own_say", {"text": "<|call|>"}, "<|call|>"),
        ("own_die", {}, "error: the tool failed"),
        ("own_say", {"text": "again"}, "again"),
    ):
        chunks = list(ask(client, name, arguments, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text.endswith(expected)
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_tools_that_the_operator_does_not_list_are_unavailable(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="server_tools"):
        ask(client, "own_secret", {})
