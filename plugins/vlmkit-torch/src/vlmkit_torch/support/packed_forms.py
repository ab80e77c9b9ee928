"""The forms in which quantized linear layers stay packed, and the layers that each can hold.

By headers: imports no torch and reads no weight. ``loading.packed_layers`` packs them.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlmkit.kit import processor
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.settings import ComputeSettings, EngineSettings
from vlmkit_torch.support import quantization

if TYPE_CHECKING:
    from vlmkit_quantized.formats import IntegerLayer

NIBBLE_BITS = 4  # a code of more bits takes a byte
DTYPE = "bfloat16"
"""The precision in which torch's operator has a fast kernel; it rounds its output to that."""
UNITS = "avx512f"
_DENSE = re.compile(r"\.experts\.|lm_head|embed|vis(ion|ual)|tower|image|audio|projector")


@dataclass(frozen=True)
class PackedForm:
    """What a kernel can hold, and the memory that it takes.

    Attributes:
        kernel: its name in messages.
        max_bits: of a code.
        row_multiple: the number of outputs is a multiple of this.
        group_sizes: of inputs that share a scale; longer groups are split.
        group_bytes: for each output and group: scale, zero point, and what else there is.
    """

    kernel: str
    max_bits: int
    row_multiple: int
    group_sizes: tuple[int, ...]
    group_bytes: int

    def group_size(self, columns: int, num_groups: int) -> int | None:
        """Return the kernel's group size for a layer with equal groups; None if it has none."""
        if num_groups < 1 or columns % num_groups:
            return None
        own = columns // num_groups
        return next((size for size in self.group_sizes if own % size == 0), None)

    def layers_of(self, checkpoint: Checkpoint) -> Mapping[str, "IntegerLayer"]:
        """Return the layers of a checkpoint in this form, by the names of their weights.

        Leaves out experts, which transformers merges, towers, and the head.
        """
        if not quantization.is_read_here(checkpoint):
            return {}
        from vlmkit_quantized import formats  # imports NumPy

        return {
            name: layer
            for name, layer in formats.integer_layers(checkpoint).items()
            if not _DENSE.search(name)
            and layer.bits <= self.max_bits
            and layer.rows % self.row_multiple == 0
            and self.group_size(layer.columns, layer.num_groups) is not None
        }

    def num_bytes(self, layer: "IntegerLayer") -> int:
        """Return the bytes of a packed layer, at most."""
        size = self.group_size(layer.columns, layer.num_groups) or layer.columns
        codes = layer.columns // 2 if layer.bits <= NIBBLE_BITS else layer.columns
        return layer.rows * (codes + layer.columns // size * self.group_bytes)


@dataclass(frozen=True)
class Packing:
    """How the layers of one model are packed.

    Attributes:
        form: of packed layers.
        is_timed: whether a layer is packed only if it is faster so.
    """

    form: PackedForm
    is_timed: bool


INT4 = PackedForm("torch's int4 operator", 4, 16, (256, 128, 64, 32), 6)
TRITON = PackedForm("a Triton kernel", 8, 1, (256, 128, 64, 32), 8)


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
    return is_wanted and bool(INT4.layers_of(checkpoint))


def has_kernel() -> bool:
    """Return whether torch has a fast kernel for this CPU and system."""
    return sys.platform != "win32" and UNITS in processor.features()
