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
"""The precision in which torch's operators have fast kernels; they round their outputs to that."""
HALF_BYTES = 2  # of a number in that precision
UNITS = "avx512f"
GROUP_SIZES = (256, 128, 64, 32)
_DENSE = re.compile(r"\.experts\.|lm_head|embed|vis(ion|ual)|tower|image|audio|projector")


@dataclass(frozen=True)
class Kernel:
    """What computes with packed weights: the layers that it can hold, and their memory.

    Attributes:
        name: in messages.
        min_bits: of a code.
        max_bits: of a code.
        row_multiple: the number of outputs is a multiple of this.
        column_multiple: the number of inputs is a multiple of this.
        group_sizes: of inputs that share a scale, and longer groups are split; empty if all inputs
            of an output share one.
        group_bytes: for each output and group: scale, zero point, and what else there is.
    """

    name: str
    min_bits: int
    max_bits: int
    row_multiple: int
    column_multiple: int
    group_sizes: tuple[int, ...]
    group_bytes: int

    def group_size(self, columns: int, num_groups: int) -> int | None:
        """Return the kernel's group size for a layer with equal groups; None if it has none."""
        if num_groups < 1 or columns % num_groups:
            return None
        if not self.group_sizes:
            return columns if num_groups == 1 else None
        own = columns // num_groups
        return next((size for size in self.group_sizes if own % size == 0), None)

    def holds(self, layer: "IntegerLayer") -> bool:
        """Return whether it can hold a layer."""
        return (
            self.min_bits <= layer.bits <= self.max_bits
            and layer.rows % self.row_multiple == 0
            and layer.columns % self.column_multiple == 0
            and self.group_size(layer.columns, layer.num_groups) is not None
        )

    def num_bytes(self, layer: "IntegerLayer") -> int:
        """Return the bytes of a packed layer, at most."""
        size = self.group_size(layer.columns, layer.num_groups) or layer.columns
        codes = layer.columns // 2 if layer.bits <= NIBBLE_BITS else layer.columns
        return layer.rows * (codes + layer.columns // size * self.group_bytes)


@dataclass(frozen=True)
class PackedForm:
    """The kernels for packed layers of a device.

    Attributes:
        name: in messages.
        kernels: the preferred one first.
    """

    name: str
    kernels: tuple[Kernel, ...]

    def kernel_of(self, layer: "IntegerLayer") -> Kernel | None:
        """Return the kernel that computes a layer; None if none can hold it."""
        return next((kernel for kernel in self.kernels if kernel.holds(layer)), None)

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
            if not _DENSE.search(name) and self.kernel_of(layer) is not None
        }

    def num_bytes(self, layer: "IntegerLayer") -> int:
        """Return the bytes of a packed layer, at most; some kernel must hold it."""
        return next(it for it in self.kernels if it.holds(layer)).num_bytes(layer)


@dataclass(frozen=True)
class Packing:
    """How the layers of one model are packed.

    Attributes:
        form: of packed layers.
        layers: that may be packed, by the names of their weights in a plain checkpoint.
        is_timed: whether a layer is packed only if it is faster so.
        also: parts of a model beside its decoder whose layers may be packed.
    """

    form: PackedForm
    layers: Mapping[str, "IntegerLayer"]
    is_timed: bool
    also: frozenset[str] = frozenset()

    @property
    def expanded_bytes(self) -> int:
        """The bytes of the largest layer, which is expanded on a CPU to compute many rows."""
        if self.form is not CPU:
            return 0
        return HALF_BYTES * max(layer.rows * layer.columns for layer in self.layers.values())

    def saved_bytes(self, item_bytes: int) -> int:
        """Return the bytes that packed layers take less than dense ones."""
        layers = self.layers.values()
        dense = sum(layer.rows * layer.columns for layer in layers) * item_bytes
        return dense - sum(map(self.form.num_bytes, layers))


INT4 = Kernel("torch's 4-bit operator", 2, 4, 16, 1, GROUP_SIZES, 6)
INT8 = Kernel("torch's 8-bit operator", 5, 8, 1, 32, (), 4)
TWO_INT4 = Kernel("two of torch's 4-bit operators", 5, 8, 16, 1, GROUP_SIZES, 8)
CPU = PackedForm("torch's operators", (INT4, INT8, TWO_INT4))
TRITON = PackedForm("a Triton kernel", (Kernel("a Triton kernel", 2, 8, 1, 1, GROUP_SIZES, 8),))


def packing_on_cpu(checkpoint: Checkpoint, settings: ComputeSettings, dtype: str) -> Packing | None:
    """Return how layers of a model are packed on a CPU; None if they are dense.

    Args:
        checkpoint: the model.
        settings: of the engine; an encoder's own copy has dense layers.
        dtype: the precision of the model.
    """
    if not isinstance(settings, EngineSettings) or dtype != DTYPE:
        return None
    wanted = settings.quantized_layers
    if wanted == "dense" or (wanted == "auto" and not has_kernel()):
        return None
    layers = CPU.layers_of(checkpoint)
    return Packing(CPU, layers, is_timed=wanted == "auto") if layers else None


def has_kernel() -> bool:
    """Return whether torch has a fast kernel for this CPU and system."""
    return sys.platform != "win32" and UNITS in processor.features()
