"""Which quantized checkpoints MatMulNBits can hold as they are, and in which blocks.

Decides from headers, before any weight is read. Imports no torch, and NumPy only where a checkpoint
is examined. ``stored_layers`` reads weights.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection
from vlmkit_torch.support import quantization

if TYPE_CHECKING:
    from vlmkit_quantized.formats import ReadTensor, ReadWeight
    from vlmkit_quantized.weight import Layout

LARGEST_BLOCKS = {4: 32, 8: 64}
"""The largest blocks with which a row's bits do not depend on its batch, by the bits of a field."""
SMALLEST_BLOCK = 16  # of MatMulNBits
AGAIN = (
    "quantize it again from its values: `vlmkit export --precision w8a8`, or "
    'engine.precision = "w8a8"'
)


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why the integers of a quantized checkpoint cannot be used; None if they can.

    Reads headers, and the zero points and shapes on which a format depends, but no weights.
    """
    from vlmkit_quantized import formats  # imports NumPy

    reason = _method_reason(checkpoint)
    if reason is None and not checkpoint.is_preview:
        try:
            reason = _layer_reason(formats.weights(checkpoint))
        except CheckpointError as error:
            return Objection(str(error), hint=error.hint)
    if reason is None:
        return None
    return Objection(f"its integers cannot be used as they are: {reason}", hint=AGAIN)


def refuse(checkpoint: Checkpoint) -> None:
    """Refuse a quantized checkpoint whose integers cannot be used; see :func:`objection`.

    Raises:
        CheckpointError: with the layer and the reason.
    """
    if reason := objection(checkpoint):
        raise CheckpointError(f"model {checkpoint.name!r}: {reason}", hint=reason.hint)


def _method_reason(checkpoint: Checkpoint) -> str | None:
    if quantization.is_read_here(checkpoint):
        return None
    return f"they are of {quantization.method_of(checkpoint)!r}, and rounded by its own package"


def _layer_reason(weights: "Mapping[str, ReadWeight | ReadTensor]") -> str | None:
    """Return the first layer that MatMulNBits cannot hold, and why; None if there is none."""
    is_empty = True
    for name, weight in weights.items():
        if weight.layout is None:
            continue
        is_empty = False
        if flaw := objection_to(weight.layout, weight.shape[1]):
            return f"layer {name.removesuffix('.weight')!r} {flaw}"
    return "it has none" if is_empty else None


def objection_to(layout: "Layout", columns: int) -> str | None:
    """Return what of a layout MatMulNBits does not have, as a predicate; None if it has all."""
    if layout.beyond:
        return f"has {layout.beyond}"
    if layout.group_size < columns and layout.group_size % SMALLEST_BLOCK:
        return f"has groups of {layout.group_size} inputs, no multiple of {SMALLEST_BLOCK}"
    return None


def field_bits(bits: int) -> int:
    """Return the bits of the field that holds a code."""
    return 4 if bits <= 4 else 8


def block_of(layout: "Layout", columns: int) -> int:
    """Return the size of blocks that lie in one group each."""
    block = LARGEST_BLOCKS[field_bits(layout.bits)]
    while layout.group_size < columns and layout.group_size % block:
        block //= 2
    return block
