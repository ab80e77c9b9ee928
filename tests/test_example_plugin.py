"""The example plugin of ``examples/`` builds, installs and loads like any external plugin."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "vlmkit-typical"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the example's wheel into a folder of its own; needs no network."""
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"]
    run("-m", "pip", "install", *options, "--target", str(target), str(EXAMPLE))
    return target


def run(*arguments, site=None):
    """Run Python with another folder of installed packages, away from the source tree."""
    paths = [str(site)] if site else []
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *inherited])},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_whole_plugin_is_under_forty_five_lines():
    assert len((EXAMPLE / "vlmkit_typical.py").read_text().splitlines()) < 45


def test_its_wheel_holds_the_module_and_no_tests(installed):
    modules = [path.name for path in installed.rglob("*.py")]
    assert modules == ["vlmkit_typical.py"]


def test_vlmkit_finds_it_by_its_entry_point(installed):
    code = """
from vlmkit.plugins import loader
found = loader.load()
assert "vlmkit-typical" not in found.broken, found.broken
print(found.samplers.get("typical").plugin)
"""
    assert run("-W", "error", "-c", code, site=installed) == "vlmkit-typical\n"


def test_a_config_selects_it(installed):
    code = """
import vlmkit
with vlmkit.load("mock", sampler={"use": "typical", "mass": 0.5}) as model:
    print(model.generate("hello", temperature=1.0, seed=1).text)
"""
    assert run("-W", "error", "-c", code, site=installed) == "hello\n"


def test_it_passes_its_own_tests_as_an_installed_package(installed):
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-c", os.devnull]
    tests = str(EXAMPLE / "tests")
    shown = run("-m", "pytest", *options, "--rootdir", tests, tests, site=installed)
    assert int(re.search(r"(\d+) passed", shown)[1]) > 20
