"""``vlmkit plugins new`` writes a project that works unchanged, for each kind of vlmkit-torch."""

import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing import project
from vlmkit_torch.interfaces import kinds

pytestmark = pytest.mark.torch

KINDS = {kind.name: kind for kind in kinds.KINDS}
NAMES = {name: f"my-{name.replace('_', '-')}" for name in KINDS}


@pytest.fixture(scope="module")
def written(made_once: Callable[..., Path]) -> Path:
    """Return a folder with a project of each kind, and a site folder in which all are installed."""

    def write(root: Path) -> None:
        for name, kind in KINDS.items():
            made = project.write(kind, root / name, NAMES[name])
            described = tomllib.loads((made.folder / "pyproject.toml").read_text())["project"]
            info = root / "site" / f"{made.distribution.replace('-', '_')}-0.1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {made.distribution}\nVersion: 0.1.0\n"
            )
            [(entry, module)] = described["entry-points"]["vlmkit"].items()
            (info / "entry_points.txt").write_text(f"[vlmkit]\n{entry} = {module}\n")

    return made_once("new-torch-plugins", write)


def run(root: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with all projects installed."""
    sources = [str(root / "site"), *map(str, sorted(root.glob("*/src")))]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, inherited), *sources])},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_tests_of_a_new_project_pass(name: str, written: Path) -> None:
    done = run(written, written / name, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_plugins_check_passes_on_a_new_project(name: str, written: Path) -> None:
    template = project.template_of(KINDS[name])
    assert template is not None
    if template.tried_with:
        made = run(written, written / name, "tests.quantized_model", template.tried_with)
        assert made.returncode == 0, made.stderr
    words = ("vlmkit", "plugins", "check", NAMES[name], *template.tried_with.split(), "--json")
    done = run(written, written / name, *words)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode, report["failed"]) == (0, 0), report
    assert report["held"] >= 3


def test_the_command_writes_the_template_of_a_plugins_kind(tmp_path: Path) -> None:
    words = ("vlmkit", "plugins", "new", "torch-attention", "vlmkit-far")
    done = run(tmp_path, tmp_path, *words)
    assert done.stdout.startswith(
        "vlmkit-far, a plugin of the kind torch attention: 8 files in vlmkit-far\n"
    )
    assert (tmp_path / "vlmkit-far/src/vlmkit_far/attention.py").is_file()


def test_a_template_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    for place in ("vlmkit_torch.testing.projects:TORCH", "vlmkit_torch.testing.projects:NONE"):
        kind: Kind[object] = Kind("codec", None, "by name", "what decodes", template=place)
        with pytest.raises(project.PluginError, match=f"{place}'.*'codec'"):
            project.write(kind, tmp_path / "new", "mine")


def test_every_kind_has_a_template_and_no_template_is_left_over() -> None:
    folders = {template.folder for template in map(project.template_of, KINDS.values()) if template}
    from vlmkit_torch.testing.projects import TEMPLATES

    assert {path for path in TEMPLATES.iterdir() if path.name != "__pycache__"} == folders


PAGE = Path(__file__).parents[3] / "docs/how-to/torch-plugins.md"


def on_page(number: int) -> dict[str, Any]:
    """Return the names of a program of the page on plugins of vlmkit-torch."""
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[number], names)
    return names


def run_contract(tested: object) -> None:
    for name in dir(tested):
        if name.startswith("test_"):
            with contextlib.suppress(pytest.skip.Exception):
                getattr(tested, name)()


def test_the_backend_of_the_page_keeps_its_contract() -> None:
    from vlmkit_torch.testing import TorchAttentionContract

    made = on_page(0)["build"]

    class Contract(TorchAttentionContract):
        def make(self) -> Any:
            return made(None)

    run_contract(Contract())


def test_the_reader_of_the_page_keeps_its_contract(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from vlmkit_torch.testing import TorchWeightsContract

    numbers = torch.randint(0, 16, (6, 64))
    packed = (numbers[:, 0::2] | numbers[:, 1::2] << 4).to(torch.uint8)
    scales = torch.rand(6, 2)
    save_file({"w.packed": packed, "w.scales": scales}, tmp_path / "model.safetensors")
    stated = {"quantization_config": {"quant_method": "nibbles"}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    page = on_page(1)

    class Contract(TorchWeightsContract):
        checkpoint = Checkpoint("m", tmp_path)

        def make(self) -> Any:
            return page["build"](BuildContext("", self.files()))

        def reference(self) -> Any:
            return {"w": (numbers.float() - 8) * scales.repeat_interleave(32, 1)}

    run_contract(Contract())
    assert page["cannot_serve"](Checkpoint("m", tmp_path)) is None


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_new_plugin_loads_without_vlmkit_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.write(KINDS[name], tmp_path / name, NAMES[name])
    for module in [each for each in sys.modules if each.startswith("vlmkit_torch.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "vlmkit_torch", None)
    (module_file,) = (made.folder / "src").glob("*/plugin.py")
    assert runpy.run_path(str(module_file))["VLMKIT_API"] == (1, 0)
