"""Derives from a decoder's header how it runs, for graphs of other exporters.

Does not rely on names of files.
"""

from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.graph_header import GraphHeader
from vlmkit_onnx.folder.layout import DecoderKind

EXACT_BLOCK_SIZE = 32  # larger blocks have different kernels for one row and for several
MAX_SEQUENCE_TOKENS = 2**24
DEFAULT_SEQUENCE_TOKENS = 4096  # every model in these layouts supports at least that
MIXING_OPS = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention", "QMoE", "MoE"}
)
"""Operators whose scale or routing of a row depends on the rest of its batch."""

EIGHT_BIT_OPS = frozenset(
    {
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"),
        *("ConvInteger", "QLinearConv", "DequantizeLinear", "QAttention", "QGemm"),
    }
)
"""Operators on weights of eight bits."""


def stored_precision(header: GraphHeader) -> str:
    """Return how a graph's weights are stored, such as ``int4``."""
    if header.packed:
        return f"int{min(packed.num_bits for packed in header.packed)}"
    if header.op_types & EIGHT_BIT_OPS:
        return "int8"
    floats = {info.element_type for info in header.outputs.values()}
    return "fp16" if "float16" in floats else "fp32"


def decoder_kind(header: GraphHeader) -> DecoderKind:
    """Return the kind of a decoder's cache."""
    return "masked" if header.attention else "concat"


def is_batch_invariant(header: GraphHeader) -> bool:
    """Return whether a row of logits is known never to depend on the rest of its batch.

    Measured for single precision and for packed weights in blocks of 32, with attention that gets
    the length of each row.
    """
    floats = {
        info.element_type
        for info in (*header.inputs.values(), *header.outputs.values())
        if "float" in info.element_type
    }
    return (
        decoder_kind(header) == "masked"
        and floats == {"float32"}
        and not header.op_types & MIXING_OPS
        and all(packed.block_size == EXACT_BLOCK_SIZE for packed in header.packed)
    )


def usable_tokens(header: GraphHeader, max_sequence_tokens: int, window: int | None) -> int:
    """Return the longest sequence for which a graph is correct.

    Some exporters omit the sliding window of a family. Such a graph is correct as long as the
    window covers the whole sequence.

    Args:
        header: of the decoder.
        max_sequence_tokens: longest sequence of the model.
        window: tokens that a token sees by the configuration; None means all.
    """
    has_windows = any(attention.window for attention in header.attention)
    if window is None or has_windows or decoder_kind(header) != "masked":
        return max_sequence_tokens
    return min(max_sequence_tokens, window)


def language_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the configuration of the language model from ``config.json``."""
    for key in ("text_config", "language_config", "llm_config"):
        part = checkpoint.config.get(key)
        if isinstance(part, dict):
            return {**checkpoint.config, **part}
    return checkpoint.config


def positive(config: dict[str, Any], key: str, most: int, source: str) -> int | None:
    """Return a count that a configuration states; None if it states none.

    Raises:
        CheckpointError: the value is not an integer from 1 to ``most``.
    """
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise CheckpointError(f"{key!r} in {source!r} is not a number from 1 to {most}")
    return value


def refuse_vocabulary(
    header: GraphHeader, logits: str, expected: int | None, file: str, source: str
) -> None:
    """Check that a decoder's logits have the vocabulary size that the configuration states.

    Raises:
        CheckpointError: they have another size.
    """
    shape = header.outputs[logits].shape if logits in header.outputs else None
    width = shape[-1] if shape else None
    if expected is not None and isinstance(width, int) and width != expected:
        raise CheckpointError(
            f"{file!r} gives logits of {width} tokens, and the vocabulary in {source!r} has "
            f"{expected}"
        )
