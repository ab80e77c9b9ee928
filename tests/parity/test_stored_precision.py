"""Weights that are read as stored and then converted equal those that transformers converts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.loading import reading, weights
from vlmkit_torch.loading.mapped_files import MappedFiles

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NAMES = (
    *zoo.NAMES_TEXT,
    *zoo.NAMES_VISION,
    *zoo.NAMES_MORE,
    *zoo.NAMES_OTHERS,
    *zoo.NAMES_THINKERS,
)


def stored_in(dtype: torch.dtype, source: Path, folder: Path) -> Checkpoint:
    """Copy a checkpoint and round its weights."""
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors"):
        rounded = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in load_file(path).items()
        }
        save_file(rounded, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder.name, folder)


@pytest.mark.parametrize("name", NAMES)
def test_converted_weights_and_buffers_equal_those_of_transformers(
    name: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = stored_in(torch.bfloat16, saved(name), tmp_path / "m")
    config = reading.read_config(checkpoint)
    expected = reading.read_model(checkpoint, config, torch.float32)
    made = weights.load(checkpoint, config, CPU, torch.float32)

    for kind in ("named_parameters", "named_buffers"):
        theirs, ours = dict(getattr(expected, kind)()), dict(getattr(made, kind)())
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            assert tensor.dtype == theirs[key].dtype, key
            assert torch.equal(tensor, theirs[key]), key


def test_each_stored_weight_is_freed_after_its_conversion(
    saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = stored_in(torch.bfloat16, saved("llama"), tmp_path / "m")
    dropped: list[int] = []
    monkeypatch.setattr(MappedFiles, "drop", lambda _, tensor: dropped.append(tensor.nbytes))
    config = reading.read_config(checkpoint)
    model = weights.load(checkpoint, config, CPU, torch.float32)
    assert sum(dropped) == sum(weight.numel() for weight in model.parameters()) * 2

    dropped.clear()
    weights.load(checkpoint, config, CPU, torch.bfloat16)
    assert not dropped, "weights that are computed with as they are stored stay mapped"


@pytest.mark.parametrize(("stored", "one"), [("bfloat16", True), ("float32", True), (None, False)])
def test_only_weights_of_one_precision_are_read_as_stored(
    stored: str | None, one: bool, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = stored_in(getattr(torch, stored or "bfloat16"), saved("llama"), tmp_path / "m")
    if stored is None:
        path = next(checkpoint.path.glob("*.safetensors"))
        tensors = load_file(path)
        name = min(tensors)
        save_file({**tensors, name: tensors[name].float()}, path, metadata={"format": "pt"})
    assert (weights.stored_dtype(checkpoint) is not None) is one
