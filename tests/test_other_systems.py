"""The project on macOS and Windows, as far as Linux can simulate them; see ``other_system``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = [
    f"packages/vlmkit-core/tests/{name}.py" for name in ("test_commands", "test_heap", "test_load")
]
SERVER = ["packages/vlmkit-server/tests/test_run.py"]
ONNX = [
    f"plugins/vlmkit-onnx/tests/test_{name}.py"
    for name in ("export_cache", "session", "host_memory", "system_memory")
]
PYTEST = [
    *("-X", "warn_default_encoding", "-m", "pytest", "-p", "other_system", "-q"),
    *("-p", "no:cacheprovider", "-o", "timeout_method=thread", "-m", "not gpu"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux is what plays the others")
@pytest.mark.parametrize("system", [pytest.param("darwin", marks=pytest.mark.slow), "win32"])
def test_core_server_and_cache_tests_pass_on_another_operating_system(system: str) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *PYTEST, *CORE, *SERVER, *ONNX],
        cwd=ROOT,
        env={**os.environ, "OTHER_SYSTEM": system, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:]
