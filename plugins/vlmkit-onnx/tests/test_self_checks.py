"""Exported models are checked at load with the sample images that the exporter wrote."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit_onnx.engine.onnx_engine import OnnxEngine
from vlmkit_onnx.self_checks import export_sample as kept

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

FAMILY = "qwen2_5_vl"


@pytest.fixture(autouse=True)
def _nothing_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store check records in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(exported: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of an exported model that a test may change."""
    return Path(shutil.copytree(exported(FAMILY), tmp_path / "m"))


def load(folder: Path, **settings: Any) -> None:
    few = {"use": "onnx", "cache_tokens": 600, "num_threads": 1, **settings}
    vlmkit.load(folder, engine=few).close()


def stored(folder: Path) -> dict[str, Any]:
    with np.load(folder / kept.FILE) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.mark.slow
def test_an_export_has_two_sample_images_and_passes_its_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    try_media = OnnxEngine.try_media

    def noted(engine: Any, prompts: Any, encoder: Any) -> None:
        tried.append(len(prompts))
        try_media(engine, prompts, encoder)

    monkeypatch.setattr(OnnxEngine, "try_media", noted)
    load(folder)

    shapes = {name: array.shape for name, array in stored(folder).items()}
    assert tried == [2]
    assert shapes["0/in/pixel_values"] != shapes["1/in/pixel_values"]
    assert {name.split("/")[1] for name in shapes} == {"in", "out"}


@pytest.mark.parametrize("image", ["0", "1"])
def test_a_tower_with_other_features_than_at_export_is_refused(image: str, folder: Path) -> None:
    arrays = stored(folder)
    name = next(name for name in arrays if name.startswith(f"{image}/out/"))
    arrays[name] = arrays[name] * 1.05
    np.savez(folder / kept.FILE, **arrays)

    with pytest.raises(CheckpointError, match="does not compute here what it computed when"):
        load(folder)
    load(folder, self_check=False)


def test_rounding_of_another_machine_passes(folder: Path) -> None:
    arrays = stored(folder)
    random = np.random.default_rng(0)
    for name in arrays:
        if "/out/" in name:
            noise = random.uniform(-1, 1, arrays[name].shape) * 1e-3 * np.abs(arrays[name]).max()
            arrays[name] = (arrays[name] + noise).astype(np.float32)
    np.savez(folder / kept.FILE, **arrays)

    load(folder)


def test_a_folder_without_sample_images_loads_and_a_broken_sample_is_refused(folder: Path) -> None:
    for broken in (b"", b"PK\x05\x06", (folder / kept.FILE).read_bytes()[:-100]):
        (folder / kept.FILE).write_bytes(broken)
        with pytest.raises(CheckpointError, match="is not what an export has beside its vision"):
            load(folder)
    (folder / kept.FILE).unlink()
    load(folder)


def test_sample_images_that_need_too_much_memory_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MAX_BYTES", 2**22)
    with (folder / kept.FILE).open("wb") as file:
        np.savez_compressed(file, **{"0/in/pixel_values": np.zeros(2**22 + 1, np.uint8)})
    assert (folder / kept.FILE).stat().st_size < 2**20

    with pytest.raises(CheckpointError, match="is not what an export has beside its vision"):
        load(folder)


def test_a_processor_that_does_not_fit_the_exported_tower_is_refused(folder: Path) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "patch_size": 7}))

    with pytest.raises(CheckpointError, match="cannot answer about pictures"):
        load(folder)
    load(folder, self_check=False)


def test_non_finite_logits_at_the_check_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = OnnxEngine.forward

    def overflown(engine: Any, items: Any) -> Any:
        made = forward(engine, items)
        made.logits[...] = np.nan
        return made

    monkeypatch.setattr(OnnxEngine, "forward", overflown)
    with pytest.raises(CheckpointError, match="values that are not numbers"):
        load(folder)
