"""Finds the quantized linear layers that torch's 4-bit operator can hold, by headers.

Imports no torch and reads no weight. ``loading.packed_layers`` packs them.
"""

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vlmkit.kit import processor
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.settings import ComputeSettings, EngineSettings
from vlmkit_torch.support import quantization

if TYPE_CHECKING:
    from vlmkit_quantized.formats import IntegerLayer

BITS = 4
GROUP_SIZES = (256, 128, 64, 32)
ROW_MULTIPLE = 16
DTYPE = "bfloat16"
"""The precision in which the operator has a fast kernel; it rounds its output to that."""
GROUP_BYTES = 6  # of a row and a group: scale, zero, and what rounding the zero left
UNITS = "avx512f"
_DENSE = re.compile(r"\.experts\.|lm_head|embed|vis(ion|ual)|tower|image|audio|projector")


def group_size(columns: int, num_groups: int) -> int | None:
    """Return the operator's group size for a layer with equal groups; None if it has none."""
    if num_groups < 1 or columns % num_groups:
        return None
    own = columns // num_groups
    return next((size for size in GROUP_SIZES if own % size == 0), None)


def layers_of(checkpoint: Checkpoint) -> Mapping[str, "IntegerLayer"]:
    """Return the layers of a checkpoint that the operator can hold, by the names of their weights.

    Leaves out experts, which transformers merges, towers, and the head.
    """
    if not quantization.is_read_here(checkpoint):
        return {}
    from vlmkit_quantized import formats  # imports NumPy

    return {
        name: layer
        for name, layer in formats.integer_layers(checkpoint).items()
        if not _DENSE.search(name)
        and layer.bits <= BITS
        and layer.rows % ROW_MULTIPLE == 0
        and group_size(layer.columns, layer.num_groups) is not None
    }


def packed_bytes(layer: "IntegerLayer") -> int:
    """Return the bytes of a packed layer."""
    size = group_size(layer.columns, layer.num_groups) or layer.columns
    return layer.rows * (layer.columns // 2 + layer.columns // size * GROUP_BYTES)


def may_pack(checkpoint: Checkpoint, settings: ComputeSettings, dtype: str) -> bool:
    """Return whether layers of a model stay packed on a CPU, unless dense ones are faster.

    Args:
        checkpoint: the model.
        settings: of the engine; an encoder's own copy has dense layers.
        dtype: the precision of the model.
    """
    if not isinstance(settings, EngineSettings) or dtype != DTYPE:
        return False
    is_wanted = settings.quantized_layers == "packed" or (
        settings.quantized_layers == "auto" and has_kernel()
    )
    return is_wanted and bool(layers_of(checkpoint))


def has_kernel() -> bool:
    """Return whether torch has a fast kernel for this CPU and system."""
    return sys.platform != "win32" and UNITS in processor.features()
