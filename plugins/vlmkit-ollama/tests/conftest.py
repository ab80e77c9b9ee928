"""A server process with the mock model, and the client of Ollama that talks to it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

CONFIG = """
models = [{model = "mock", aliases = ["other"]}]
[engine]
use = "mock"
replies = [
  {to = "twice", calls = [{name = "look", arguments = {at = "left"}}, {name = "look"}]},
  {to = "sunny", text = "It is sunny."},
  {to = "in Köln", text = "I look.", calls = [{name = "weather", arguments = {city = "Köln"}}]},
  {to = "as JSON", text = '{"colour": "red", "count": 3}'},
  {to = "think", reasoning = "Let me see.", text = "Yes."},
  {to = "long", tokens = 200, text = "word "},
  {to = "break", tokens = 50, text = "word ", fail_at_token = 20},
]
[server]
port = 0
"""


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server, which runs its model by the runner of ``TESTS_RUNNER``."""
    folder = tmp_path_factory.mktemp("ollama")
    config, log = folder / "vlmkit.toml", folder / "log"
    config.write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-m", "vlmkit", "serve", "--config", str(config)]
    env = os.environ | {"VLMKIT_RUNNER__USE": os.environ.get("TESTS_RUNNER", "auto")}
    with log.open("wb") as file, subprocess.Popen(command, stderr=file, env=env) as process:
        try:
            yield _address(process, log)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[ollama.Client]:
    """The unmodified client."""
    with ollama.Client(url, trust_env=False) as client:
        yield client


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the model is loaded, and return the address."""
    while "is ready" not in (text := log.read_text(encoding="utf-8")):
        assert process.poll() is None, text
        time.sleep(0.1)
    found = re.search(r"listening on (\S+)\n", text)
    assert found
    return found[1]
