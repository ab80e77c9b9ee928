"""What a foreign decoder's header tells of how it runs. File names are not to be trusted."""

from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.graph_header import GraphHeader
from vlmkit_onnx.folder.layout import DecoderKind

EXACT_BLOCK_SIZE = 32  # a larger block has another kernel for one row than for several
MAX_SEQUENCE_TOKENS = 2**24
DEFAULT_SEQUENCE_TOKENS = 4096  # every model in these layouts was made for that, at the least
MIXING_OPS = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention", "QMoE", "MoE"}
)
"""Operators that scale or route a row by what else is in its batch."""

EIGHT_BIT_OPS = frozenset(
    {
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"),
        *("ConvInteger", "QLinearConv", "DequantizeLinear", "QAttention", "QGemm"),
    }
)
"""Operators on weights of eight bits."""


def stored_precision(header: GraphHeader) -> str:
    """Return in a word how a graph's weights are stored, such as ``int4``."""
    if header.packed:
        return f"int{min(packed.num_bits for packed in header.packed)}"
    if header.op_types & EIGHT_BIT_OPS:
        return "int8"
    floats = {info.element_type for info in header.outputs.values()}
    return "fp16" if "float16" in floats else "fp32"


def decoder_kind(header: GraphHeader) -> DecoderKind:
    """Return how a decoder's cache works."""
    return "masked" if header.attention else "concat"


def is_batch_invariant(header: GraphHeader) -> bool:
    """Tell whether a row of logits is known never to depend on the rest of its batch.

    It was measured for single precision and for packed weights in blocks of 32, with attention
    that knows each row's length.
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
    """Return how long a sequence may get on a graph.

    Some exporters leave out the sliding window of a family. What such a graph computes is right as
    long as the window holds the whole sequence.

    Args:
        header: of the decoder.
        max_sequence_tokens: what the model was made for.
        window: tokens that a token sees by the configuration; None for all.
    """
    has_windows = any(attention.window for attention in header.attention)
    if window is None or has_windows or decoder_kind(header) != "masked":
        return max_sequence_tokens
    return min(max_sequence_tokens, window)


def language_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what ``config.json`` says of the language model; empty if it says nothing."""
    for key in ("text_config", "language_config", "llm_config"):
        part = checkpoint.config.get(key)
        if isinstance(part, dict):
            return {**checkpoint.config, **part}
    return checkpoint.config


def positive(config: dict[str, Any], key: str, most: int, source: str) -> int | None:
    """Return a count that a configuration states; None if it does not.

    Raises:
        CheckpointError: it is not a whole number of at least one and at most ``most``.
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
    """Make sure that a decoder's logits are of the vocabulary that the configuration states.

    Raises:
        CheckpointError: they are not.
    """
    shape = header.outputs[logits].shape if logits in header.outputs else None
    width = shape[-1] if shape else None
    if expected is not None and isinstance(width, int) and width != expected:
        raise CheckpointError(
            f"{file!r} gives logits of {width} tokens, and the vocabulary in {source!r} has "
            f"{expected}"
        )
