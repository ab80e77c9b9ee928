"""Cached exports: found without torch, exported once, and never used while incomplete."""

import ast
import hashlib
import shutil
import subprocess
import sys
import threading
import tomllib
import types
from pathlib import Path
from typing import Any, Literal

import onnx
import pytest
from onnx import TensorProto, helper
from packaging.requirements import Requirement

from vlmkit.errors import PluginUnavailable
from vlmkit.kit import content
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_onnx.export_once import cached_export, cached_tower
from vlmkit_onnx.folder import export_cache, manifest, refusal
from vlmkit_onnx.folder.export_cache import cached_folder, finished
from vlmkit_onnx.folder.manifest import Manifest

CHECKED = (1, "9b46e6e4b1454537")
"""The revision of the graphs, and a digest of the code of the exporter."""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return Checkpoint("tiny", folder)


def _silent(_: str) -> None:
    pass


def test_the_folder_is_in_the_users_cache_and_named_by_content_and_part(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = cached_folder(checkpoint, "w8a8")
    assert folder.parent == tmp_path / "cache" / "vlmkit" / "onnx"
    assert folder == cached_folder(Checkpoint("other name", checkpoint.path), "w8a8")
    assert folder != cached_folder(checkpoint, "int4")
    (checkpoint.path / "model.safetensors").write_bytes(b"new weights")
    assert folder != cached_folder(Checkpoint("tiny", checkpoint.path), "w8a8")


def test_a_fine_tune_with_equal_file_sizes_and_times_has_its_own_export(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    weights = checkpoint.path / "model.safetensors"
    weights.write_bytes(b"the weights of one")
    folder = cached_folder(checkpoint, "w8a8")
    folder.mkdir(parents=True)
    manifest.write(folder, _manifest())
    tuned = Path(shutil.copytree(checkpoint.path, tmp_path / "tuned"))
    (tuned / weights.name).write_bytes(b"weights of another")
    shutil.copystat(weights, tuned / weights.name)
    assert finished(Checkpoint("copy", checkpoint.path), "w8a8") == folder
    assert finished(Checkpoint("tuned", tuned), "w8a8") is None


def test_a_new_revision_of_the_graphs_is_exported_anew(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _exported(cached_folder(checkpoint, "w8a8"))
    early = _exported(_early_folder(checkpoint))
    assert finished(checkpoint, "w8a8") == folder
    monkeypatch.setattr(export_cache, "REVISION", export_cache.REVISION + 1)
    assert finished(checkpoint, "w8a8") is None
    assert cached_folder(checkpoint, "w8a8") not in (folder, early)


def test_an_early_export_is_used_for_its_checkpoint_and_precision(checkpoint: Checkpoint) -> None:
    early = _exported(_early_folder(checkpoint))
    assert finished(checkpoint, "w8a8") == early
    assert finished(checkpoint, "int4") is None
    assert cached_export(checkpoint, "w8a8", _silent) == early
    (checkpoint.path / "model.safetensors").write_bytes(b"other weights")
    assert finished(Checkpoint("tiny", checkpoint.path), "w8a8") is None


@pytest.mark.parametrize(
    ("operator", "parts"),
    [("MatMulIntegerToFloat", ["tower", "tower-w8a8"]), ("MatMul", ["tower-fp32"])],
)
def test_an_early_tower_is_used_for_the_precision_of_its_graph(
    operator: str, parts: list[str], checkpoint: Checkpoint
) -> None:
    early = _early_folder(checkpoint)
    early.mkdir(parents=True)
    node = helper.make_node(operator, ["a", "b"], ["c"])
    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in "abc")
    graph = helper.make_graph([node], "vision", [a, b], [c])
    onnx.save(helper.make_model(graph), str(early / "vision.onnx"))
    found = [part for part in export_cache.TOWERS.values() if finished(checkpoint, part) == early]
    assert found == parts


def test_an_unfinished_early_export_is_ignored(checkpoint: Checkpoint) -> None:
    _early_folder(checkpoint).mkdir(parents=True)
    assert finished(checkpoint, "w8a8") is None


def test_a_change_of_the_exporter_states_whether_its_graphs_change() -> None:
    sources = Path(export_cache.__file__).parents[1] / "export"
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.py")):
        digest.update(_code_of(path).encode())
    assert (export_cache.REVISION, digest.hexdigest()[:16]) == CHECKED, (
        "the exporter changed: raise REVISION in export_cache.py if existing exports must not be "
        "used any more, and record both numbers in CHECKED"
    )


def test_a_checkpoint_that_was_never_exported_is_not_read(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cached_folder(Checkpoint("tiny", checkpoint.path), "int4")
    other.mkdir(parents=True)
    monkeypatch.setattr(content, "digest", lambda _: pytest.fail("weights are read"))
    assert finished(checkpoint, "w8a8") is None


def test_a_relative_cache_home_is_ignored(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setattr(Path, "home", lambda: Path("/somewhere"))
    assert cached_folder(checkpoint, "w8a8").is_relative_to("/somewhere/.cache/vlmkit/onnx")


def test_an_export_is_found_again_without_torch(checkpoint: Checkpoint) -> None:
    folder = cached_folder(checkpoint, "w8a8")
    folder.mkdir(parents=True)
    manifest.write(folder, _manifest())
    program = (
        "import sys; from pathlib import Path\n"
        "from vlmkit.kit.checkpoint import Checkpoint\n"
        "from vlmkit_onnx.export_once import cached_export\n"
        "print(cached_export(Checkpoint('tiny', Path(sys.argv[1])), 'w8a8', print))\n"
        "assert not {'torch', 'transformers', 'onnxruntime'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(folder)


def test_a_folder_without_a_manifest_is_no_export(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_folder(checkpoint, "w8a8").mkdir(parents=True)
    monkeypatch.setattr(export_cache, "missing_packages", lambda: ["torch"])
    with pytest.raises(PluginUnavailable, match="torch must be installed") as refused:
        cached_export(checkpoint, "w8a8", _silent)
    assert refused.value.hint == install_command("vlmkit-onnx[export]")


def test_one_of_several_processes_exports(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    started, go_on = threading.Event(), threading.Event()

    def export(_: Checkpoint, folder: Path, *__: Any, with_tower: bool) -> None:
        assert not with_tower
        made.append(folder)
        started.set()
        assert go_on.wait(300)
        folder.mkdir(parents=True)
        manifest.write(folder, _manifest())

    module = types.ModuleType("vlmkit_onnx.export.exporter")
    module.export = export  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vlmkit_onnx.export.exporter", module)
    monkeypatch.setattr(export_cache, "missing_packages", list)
    stages: list[str] = []

    def tell(stage: str) -> None:
        stages.append(stage)
        go_on.set()

    first = threading.Thread(target=cached_export, args=(checkpoint, "w8a8", _silent))
    first.start()
    assert started.wait(300)
    folder = cached_export(checkpoint, "w8a8", tell)
    first.join(30)
    assert made == [folder]
    assert stages == ["waiting for another export"]


def test_a_tower_is_exported_separately_and_found_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def export_tower(_: Checkpoint, folder: Path, precision: Any, on_stage: Any) -> None:
        made.append((folder, precision))
        folder.mkdir(parents=True)
        (folder / "vision.onnx").write_bytes(b"")

    module = types.ModuleType("vlmkit_onnx.export.exporter")
    module.export_tower = export_tower  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vlmkit_onnx.export.exporter", module)
    monkeypatch.setattr(export_cache, "missing_packages", list)
    first, again = (cached_tower(checkpoint, None, _silent) for _ in range(2))
    assert made == [(first, None)]
    assert again == first != cached_folder(checkpoint, "w8a8")
    assert cached_tower(checkpoint, "fp32", _silent) != first
    assert made[1:] == [(cached_folder(checkpoint, "tower-fp32"), "fp32")]


@pytest.mark.parametrize("part", ["int4", "tower"])
def test_without_the_exporter_each_part_needs_its_own_export(
    part: Literal["int4", "tower"], checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint.path / "config.json").write_text('{"model_type": "llava", "vision_config": {}}')
    (checkpoint.path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    checkpoint = Checkpoint("tiny", checkpoint.path)
    monkeypatch.setattr(export_cache, "missing_packages", lambda: ["torch"])
    folder = cached_folder(checkpoint, part)
    folder.mkdir(parents=True)
    if part == "tower":
        (folder / "vision.onnx").write_bytes(b"")
    else:
        manifest.write(folder, _manifest())
    refused = "there are no ONNX graphs, and the exporter, which makes them, is not installed"
    is_tower = part == "tower"
    assert refusal.engine_cannot_serve(checkpoint) == (refused if is_tower else None)
    assert refusal.encoder_cannot_serve(checkpoint) == (None if is_tower else refused)


def test_the_exporters_extra_installs_its_packages() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    named = {Requirement(text).name for text in project["optional-dependencies"]["export"]}
    assert {name.replace("_", "-") for name in export_cache.EXPORTER_NEEDS} == named


def _code_of(path: Path) -> str:
    """Return the lines of a file without docstrings, blank lines and comments."""
    text = path.read_text(encoding="utf-8")
    lines = dict(enumerate(text.splitlines(), 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno, (node.end_lineno or 0) + 1):
                lines.pop(number, None)
    kept = (line.strip() for line in lines.values())
    return "\n".join(line for line in kept if line and not line.startswith("#"))


def _early_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder name of early versions, with a digest of the exporter's sources."""
    folder = cached_folder(checkpoint, "w8a8")
    return folder.with_name(f"0123456789abcdef-{checkpoint.fingerprint}")


def _exported(folder: Path) -> Path:
    folder.mkdir(parents=True)
    manifest.write(folder, _manifest())
    return folder


def _manifest() -> Manifest:
    return Manifest(
        model_type="llama", precision="w8a8", max_sequence_tokens=64, is_batch_invariant=True
    )
