"""A method of quantization that only tests know: eight bits, and a scale for each row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading.stored_tensors import StoredTensors


@dataclass(frozen=True)
class RowScaledWeight:
    """Integers times scales."""

    name: str
    stored: StoredTensors

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape(f"{self.name}_int8")

    @property
    def tensors(self) -> tuple[str, ...]:
        return (f"{self.name}_int8", f"{self.name}_scale")

    def dense(self) -> torch.Tensor:
        integers, scale = (self.stored[name] for name in self.tensors)
        return integers.float() * scale.float()[:, None]


class RowScaledReader(WeightReader):
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.stored = StoredTensors(checkpoint)

    def weights(self) -> Mapping[str, Any]:
        names = [name.removesuffix("_int8") for name in self.stored if name.endswith("_int8")]
        return {name: RowScaledWeight(name, self.stored) for name in names}


def quantize(folder: Path, plain: Path) -> dict[str, torch.Tensor]:
    """Quantize the linear layers of a folder, and write their values into another one."""
    [file] = folder.glob("*.safetensors")
    values, stored, dense = {}, {}, {}
    for name, weight in load_file(file).items():
        dense[name] = weight.float()
        is_linear = weight.ndim == 2 and ".layers." in name and "norm" not in name
        if not is_linear:
            stored[name] = weight.float()
            continue
        scale = (weight.float().abs().amax(1).clamp(min=1e-6) / 127).half().clamp(min=1e-6)
        integers = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127)
        stored |= {f"{name}_int8": integers.to(torch.int8), f"{name}_scale": scale}
        values[name] = dense[name] = integers * scale.float()[:, None]
    save_file(stored, file, metadata={"format": "pt"})
    save_file(dense, plain / file.name, metadata={"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "row-scaled"}
    (folder / "config.json").write_text(json.dumps(stated))
    return values
