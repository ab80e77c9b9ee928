"""The banner of ``vlmkit serve``: its commands work when they are pasted."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from running_server import eventually, process

from vlmkit import cli

pytestmark = pytest.mark.posix

SECRET = "a-key-of-at-least-sixteen-characters"


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def banner(server):
    """Return the shell command and the Python program of the banner."""
    assert eventually(lambda: "client = OpenAI(" in server.log.read_text())
    log = server.log.read_text().partition("ready.")[2]
    found = re.search(r"\n\n(curl .*?)\n\n(.*?api_key=[^\n]*\n)", log, re.DOTALL)
    return found.groups()


def run_in_shell(command, **environ):
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def run_in_python(program, **environ):
    ask = (
        'print(client.chat.completions.create(model="mock", '
        'messages=[{"role": "user", "content": "pong"}]).choices[0].message.content)\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", program + ask],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_commands_of_the_banner_run_as_printed(port, tmp_path):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", str(port)]
    with process(command, tmp_path) as server:
        in_shell, in_python = banner(server)
        assert '"content":"Hello"' in run_in_shell(in_shell)
        assert run_in_python(in_python) == "pong\n"


def test_commands_of_the_banner_run_with_a_key_and_do_not_change_the_shell(
    port, tmp_path, monkeypatch
):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    option = f"server.api_key_file={tmp_path / 'key'}"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--set", option]
    with process([*command, "--port", str(port)], tmp_path) as server:
        in_shell, in_python = banner(server)
        variable = re.search(r"Bearer \$(\w+)", in_shell)[1]
        assert f"With one of its keys in {variable}, ask it" in server.log.read_text()
        assert '"missing_api_key"' in run_in_shell(in_shell, **{variable: ""})
        assert '"content":"Hello"' in run_in_shell(in_shell, **{variable: SECRET})
        assert run_in_python(in_python, **{variable: SECRET}) == "pong\n"
        assert SECRET not in server.log.read_text()
    monkeypatch.setenv(variable, SECRET)
    assert cli.run(["config", "check"]) == 0


@pytest.mark.parametrize("name", ["it's", 'a "model"', "$(touch gone)", "a;b\\"])
def test_commands_of_the_banner_quote_the_model_name(name, port, tmp_path):
    text = f'[[models]]\nmodel = "mock"\nname = {json.dumps(name)}\n'
    (tmp_path / "vlmkit.toml").write_text(text)
    command = [sys.executable, "-m", "vlmkit", "serve", "--config", "vlmkit.toml"]
    with process([*command, "--port", str(port)], tmp_path) as server:
        assert '"content":"Hello"' in run_in_shell(banner(server)[0])
    assert not (tmp_path / "gone").exists()
