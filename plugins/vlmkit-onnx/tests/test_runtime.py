"""ONNX Runtime writes nothing into the user's home and sends no telemetry."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="homes are told otherwise there")

PROGRAM = """
import os
import vlmkit_onnx.plugin
NAMES = ("ORT_DISABLE_TELEMETRY", "ORT_GQA_DISABLE_FLASH_ATTENTION")
before = [os.environ.get(name) for name in NAMES]
import vlmkit_onnx.sessions.session
print(*before, *[os.environ.get(name) for name in NAMES])
"""


def imported(home: Path, **environ: str) -> str:
    """Import the plugin and then ONNX Runtime, in a process whose home is an empty folder."""
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "HOME": str(home), **environ},
        cwd=home,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_importing_onnx_runtime_writes_nothing(tmp_path: Path) -> None:
    imported(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_plugin_sets_the_environment_only_when_it_imports_onnx_runtime(
    tmp_path: Path,
) -> None:
    assert imported(tmp_path) == "None None 1 1"


def test_a_value_that_the_user_has_set_is_kept(tmp_path: Path) -> None:
    set_by_user = {"ORT_DISABLE_TELEMETRY": "true", "ORT_GQA_DISABLE_FLASH_ATTENTION": "0"}
    assert imported(tmp_path, **set_by_user) == "true 0 true 0"
