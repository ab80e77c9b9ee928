"""Components that are built on first use are built before a server is ready."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running_server import chat, eventually, process

HERE = Path(__file__).parent
PLUGIN = HERE / "late.py"
VLMKIT = [sys.executable, "-m", "vlmkit"]
CHOSEN = ["--set", f'plugins.files=["{PLUGIN}"]', "--set", "constraint.use=late"]

pytestmark = pytest.mark.posix


@pytest.fixture(autouse=True)
def _finds_its_modules(monkeypatch):
    paths = [str(HERE), str(HERE.parents[2] / "tests"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def run_command(command, folder):
    return subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_a_ready_server_has_built_its_constraint_compiler(tmp_path):
    with process([*VLMKIT, "serve", "mock", "--port", "0", *CHOSEN], tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        assert (tmp_path / "built").exists()  # its worker may have built another one by now
        log = server.log.read_text()
        assert log.index("  constraint ") < log.index("'mock' is ready")
        choice = {"structured_outputs": {"choice": ["yes", "no"]}}
        for _ in range(2):
            answer = server.client.chat.completions.create(**chat(), extra_body=choice)
            assert answer.choices[0].message.content in ("yes", "no")
        # Once by the server, and once by its constraint worker.
        assert (tmp_path / "built").read_text() == "built\nbuilt\n"


def test_a_model_whose_compiler_fails_to_build_is_not_served(tmp_path):
    (tmp_path / "no_build").touch()
    command = [*VLMKIT, "serve", "mock", "--port", "0", *CHOSEN]
    done = run_command(command, tmp_path)
    assert done.returncode == 1
    assert "'mock' could not be loaded: constraint 'late'" in done.stderr


def test_a_request_without_a_constraint_builds_no_compiler(tmp_path):
    command = [*VLMKIT, "ask", "mock", "hello", *CHOSEN]
    done = run_command(command, tmp_path)
    assert done.stdout.strip() == "hello", done.stderr
    assert not (tmp_path / "built").exists()
