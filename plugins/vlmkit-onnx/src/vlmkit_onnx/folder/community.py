"""Reads folders laid out for transformers.js, as onnx-community publishes them.

All graphs lie in ``onnx/``, most of them several times: a suffix says how their weights are
stored. Each part is chosen by itself, as a folder need not hold every part in every form. Nothing
is loaded.
"""

from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.graph_facts import (
    DEFAULT_SEQUENCE_TOKENS,
    MAX_SEQUENCE_TOKENS,
    decoder_kind,
    is_batch_invariant,
    language_config,
    positive,
    refuse_vocabulary,
    usable_tokens,
)
from vlmkit_onnx.folder.graph_header import GraphHeader, read_header
from vlmkit_onnx.folder.layout import DecoderGraph, Layout, TokenGraph, VisionGraph

FOLDER = "onnx"
DECODERS = ("decoder_model_merged", "model")
EMBEDDINGS = "embed_tokens"
VISION = "vision_encoder"
VARIANTS = ("q4", "q4f16", "fp32", "fp16", "bnb4", "quantized", "int8", "uint8")
"""What is taken on a CPU, best first. The last three scale a whole batch by its largest value."""
ALIASES = {"q8": "quantized"}
MAX_WIDTH = 2**20
CONFIG = "config.json"


def is_community(checkpoint: Checkpoint) -> bool:
    """Tell whether a model's folder is of this layout."""
    return any(_variants(checkpoint, stem) for stem in DECODERS)


def community_layout(checkpoint: Checkpoint, variant: str | None = None) -> Layout:
    """Choose the graphs of a folder.

    Args:
        checkpoint: the folder.
        variant: how the decoder's weights are stored, such as ``q4``; the other parts follow where
            they can. None takes what runs best on a CPU.

    Raises:
        CheckpointError: a part or the variant is missing, or is no ONNX file, or ``config.json``
            does not fit.
    """
    stem = next((stem for stem in DECODERS if _variants(checkpoint, stem)), None)
    if stem is None:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no {FOLDER}/{DECODERS[0]}*.onnx and no "
            f"{FOLDER}/{DECODERS[1]}*.onnx"
        )
    chosen = _choose(checkpoint, stem, variant, is_required=True)
    file = _file(checkpoint, stem, chosen)
    header = read_header(file)
    config = language_config(checkpoint)
    tokens = positive(config, "max_position_embeddings", MAX_SEQUENCE_TOKENS, CONFIG)
    window = positive(config, "sliding_window", MAX_SEQUENCE_TOKENS, CONFIG)
    window = window if config.get("use_sliding_window", True) else None
    vocab = positive(config, "vocab_size", MAX_WIDTH, CONFIG)
    refuse_vocabulary(header, "logits", vocab, file.name, CONFIG)
    return Layout(
        kind="onnx-community",
        precision=chosen,
        decoder=DecoderGraph(file, decoder_kind(header), head_dim=_head_dim(checkpoint)),
        embeddings=_embeddings(checkpoint, header, variant),
        vision=_vision(checkpoint, variant),
        max_sequence_tokens=usable_tokens(header, tokens or DEFAULT_SEQUENCE_TOKENS, window),
        is_batch_invariant=is_batch_invariant(header),
    )


def _embeddings(
    checkpoint: Checkpoint, decoder: GraphHeader, variant: str | None
) -> TokenGraph | None:
    if "inputs_embeds" not in decoder.inputs:
        return None
    return TokenGraph(
        _file(checkpoint, EMBEDDINGS, _choose(checkpoint, EMBEDDINGS, variant, is_required=False))
    )


def _vision(checkpoint: Checkpoint, variant: str | None) -> VisionGraph | None:
    if not _variants(checkpoint, VISION):
        return None
    file = _file(checkpoint, VISION, _choose(checkpoint, VISION, variant, is_required=False))
    # Of two names for the same input the graph's own one counts.
    is_short = "grid_thw" in read_header(file).inputs
    return VisionGraph(file, is_own=False, names={"image_grid_thw": "grid_thw"} if is_short else {})


def _choose(checkpoint: Checkpoint, stem: str, variant: str | None, *, is_required: bool) -> str:
    """Return the variant of a part; one that was asked for and must be there, or the best.

    Raises:
        CheckpointError: there is none.
    """
    present = _variants(checkpoint, stem)
    wanted = ALIASES.get(variant or "", variant)
    if wanted in present:
        return wanted
    if not present:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no {FOLDER}/{stem}*.onnx",
            hint="fetch the model again",
        )
    if wanted is not None and is_required:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no variant {variant!r} of {FOLDER}/{stem}.onnx",
            hint=f"it has {', '.join(present)}",
        )
    return present[0]


def _variants(checkpoint: Checkpoint, stem: str) -> list[str]:
    """Return the variants of a part that are there, best first."""
    return [name for name in VARIANTS if _file(checkpoint, stem, name).is_file()]


def _file(checkpoint: Checkpoint, stem: str, variant: str) -> Path:
    suffix = "" if variant == "fp32" else f"_{variant}"
    return checkpoint.path / FOLDER / f"{stem}{suffix}.onnx"


def _head_dim(checkpoint: Checkpoint) -> int | None:
    config = language_config(checkpoint)
    stated = positive(config, "head_dim", MAX_WIDTH, CONFIG)
    hidden = positive(config, "hidden_size", MAX_WIDTH, CONFIG)
    heads = positive(config, "num_attention_heads", MAX_WIDTH, CONFIG)
    if stated is None and hidden is not None and heads is not None:
        return hidden // heads or None
    return stated
