"""Old names of modules import the new ones, with one warning each."""

import subprocess
import sys
from pathlib import Path

import pytest

from vlmkit.deprecated import MOVED, REMOVED_IN, new_name
from vlmkit.plugins import loader


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("old", "new"), sorted(MOVED.items()))
def test_an_old_name_imports_the_same_module_with_a_warning(old: str, new: str) -> None:
    pytest.importorskip(new.partition(".")[0])
    is_same = f"sys.modules[{old!r}] is sys.modules[{new!r}]"
    output = run(f"import sys, {old}\nimport {new}\nprint({is_same})")
    assert output.count(f"{old} is {new} now; vlmkit {REMOVED_IN} removes the old name") == 1
    assert output.startswith("True\n")


def test_a_submodule_of_an_old_name_is_loaded_once() -> None:
    output = run(
        "import vlmkit.testing.sampler_subject as old\n"
        "import vlmkit_testing.contracts.sampler_subject as new\n"
        "from vlmkit.testing import picture\n"
        "print(old is new, picture.__module__)"
    )
    assert output.startswith("True vlmkit_testing.contracts.pictures\n")


def test_an_old_name_of_an_absent_distribution_says_what_to_install() -> None:
    output = run(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'vlmkit_server' else find(name)\n"
        "import vlmkit.server"
    )
    assert "ModuleNotFoundError: vlmkit.server is vlmkit_server now, of vlmkit-server: " in output
    assert "install" in output.splitlines()[-1]


@pytest.mark.parametrize("name", ["vlmkit", "vlmkit.running.loop", "vlmkit.serverless", "numpy"])
def test_other_names_are_not_redirected(name: str) -> None:
    assert new_name(name) is None


PLUGIN = """
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.testing import picture

VLMKIT_API = (1, 0)

@hookimpl
def vlmkit_register_commands(registry):
    registry.add("draw", lambda context: picture)
"""


def test_a_plugin_that_imports_an_old_name_is_loaded_with_a_remark(tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("vlmkit.testing")]:
        del sys.modules[name]
    (tmp_path / "old.py").write_text(PLUGIN)
    plugins = loader.load(files=[tmp_path / "old.py"], entry_points=[])
    plugin = plugins.found[-1]
    assert plugin.is_loaded
    remark = f"imports vlmkit.testing, which is vlmkit_testing now; vlmkit {REMOVED_IN} removes"
    assert plugin.remarks == (f"{remark} the old name",)


def test_each_plugin_that_imports_an_old_name_gets_the_remark(tmp_path: Path) -> None:
    files = [tmp_path / "first.py", tmp_path / "second.py"]
    for file in files:
        file.write_text(PLUGIN.replace('"draw"', f'"{file.stem}"'))
    plugins = loader.load(files=files, entry_points=[])
    assert [len(plugin.remarks) for plugin in plugins.found[-2:]] == [1, 1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vlmkit.seams.monitor", "vlmkit_server.interfaces.monitor"),
        ("vlmkit.seams.tool_source", "vlmkit_server.interfaces.tool_source"),
        ("vlmkit.seams.engine", "vlmkit.interfaces.engine"),
        ("vlmkit.ask.image", "vlmkit.types.image"),
        ("vlmkit.testing.engine_contract", "vlmkit_testing.contracts.engine_contract"),
        ("vlmkit.server.http.errors", "vlmkit_server.http.errors"),
        ("vlmkit.settings.limits", "vlmkit_server.settings.limits"),
    ],
)
def test_each_old_public_module_has_a_new_name(old: str, new: str) -> None:
    assert new_name(old) == new
