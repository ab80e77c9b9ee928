"""Reads folders laid out for transformers.js, as onnx-community publishes them, or by optimum.

For transformers.js all graphs lie in ``onnx/``, most of them several times: a suffix says how their
weights are stored. Each part is chosen by itself, as a folder need not hold every part in every
form. optimum writes the same names beside ``config.json``. Nothing is loaded.
"""

from dataclasses import dataclass
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

FOLDERS = {"onnx/": "onnx-community", "": "optimum"}
"""Where graphs lie, and who writes them there."""
PAST = "past_key_values."
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
    return _place(checkpoint) is not None


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
    place = _place(checkpoint)
    if place is None:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no onnx/{DECODERS[0]}*.onnx and no "
            f"onnx/{DECODERS[1]}*.onnx, nor a decoder with a cache beside config.json"
        )
    stem = next(stem for stem in DECODERS if place.variants(stem))
    chosen = _choose(place, stem, variant, is_required=True)
    file = place.file(stem, chosen)
    header = read_header(file)
    config = language_config(checkpoint)
    tokens = positive(config, "max_position_embeddings", MAX_SEQUENCE_TOKENS, CONFIG)
    window = positive(config, "sliding_window", MAX_SEQUENCE_TOKENS, CONFIG)
    window = window if config.get("use_sliding_window", True) else None
    vocab = positive(config, "vocab_size", MAX_WIDTH, CONFIG)
    refuse_vocabulary(header, "logits", vocab, file.name, CONFIG)
    return Layout(
        kind=FOLDERS[place.folder],
        precision=chosen,
        decoder=DecoderGraph(file, decoder_kind(header), head_dim=_head_dim(checkpoint)),
        embeddings=_embeddings(place, header, variant),
        vision=_vision(place, variant),
        max_sequence_tokens=usable_tokens(header, tokens or DEFAULT_SEQUENCE_TOKENS, window),
        is_batch_invariant=is_batch_invariant(header),
    )


@dataclass(frozen=True)
class _Place:
    """Where the graphs of a model lie: in a folder of its folder, or beside ``config.json``."""

    checkpoint: Checkpoint
    folder: str

    def file(self, stem: str, variant: str) -> Path:
        """Return where a variant of a part is, or would be."""
        suffix = "" if variant == "fp32" else f"_{variant}"
        return self.checkpoint.path / self.folder / f"{stem}{suffix}.onnx"

    def variants(self, stem: str) -> list[str]:
        """Return the variants of a part that are there, best first."""
        return [name for name in VARIANTS if self.file(stem, name).is_file()]


def _place(checkpoint: Checkpoint) -> _Place | None:
    """Return where a model's graphs lie; None where there is no decoder."""
    for folder in FOLDERS:
        place = _Place(checkpoint, folder)
        found = (place.file(s, name) for s in DECODERS for name in place.variants(s))
        if (file := next(found, None)) is not None and (folder or _has_cache(checkpoint, file)):
            return place
    return None


def _has_cache(checkpoint: Checkpoint, file: Path) -> bool:
    """Tell a decoder that keeps its past from other graphs of such a name, as encoders have."""
    if checkpoint.is_preview:  # it is not there yet
        return True
    try:
        return any(name.startswith(PAST) for name in read_header(file).inputs)
    except CheckpointError:
        return True  # what reads it says what is wrong


def _embeddings(place: _Place, decoder: GraphHeader, variant: str | None) -> TokenGraph | None:
    if "inputs_embeds" not in decoder.inputs:
        return None
    return TokenGraph(
        place.file(EMBEDDINGS, _choose(place, EMBEDDINGS, variant, is_required=False))
    )


def _vision(place: _Place, variant: str | None) -> VisionGraph | None:
    if not place.variants(VISION):
        return None
    file = place.file(VISION, _choose(place, VISION, variant, is_required=False))
    # Of two names for the same input the graph's own one counts.
    is_short = "grid_thw" in read_header(file).inputs
    return VisionGraph(file, is_own=False, names={"image_grid_thw": "grid_thw"} if is_short else {})


def _choose(place: _Place, stem: str, variant: str | None, *, is_required: bool) -> str:
    """Return the variant of a part; one that was asked for and must be there, or the best.

    Raises:
        CheckpointError: there is none.
    """
    present = place.variants(stem)
    wanted = ALIASES.get(variant or "", variant)
    if wanted in present:
        return wanted
    name = f"{place.folder}{stem}"
    if not present:
        raise CheckpointError(
            f"model {place.checkpoint.name!r} has no {name}*.onnx", hint="fetch the model again"
        )
    if wanted is not None and is_required:
        raise CheckpointError(
            f"model {place.checkpoint.name!r} has no variant {variant!r} of {name}.onnx",
            hint=f"it has {', '.join(present)}",
        )
    return present[0]


def _head_dim(checkpoint: Checkpoint) -> int | None:
    config = language_config(checkpoint)
    stated = positive(config, "head_dim", MAX_WIDTH, CONFIG)
    hidden = positive(config, "hidden_size", MAX_WIDTH, CONFIG)
    heads = positive(config, "num_attention_heads", MAX_WIDTH, CONFIG)
    if stated is None and hidden is not None and heads is not None:
        return hidden // heads or None
    return stated
