"""Reads folders in the layout of transformers.js, as published by onnx-community, or of optimum.

In the layout of transformers.js, graphs are in ``onnx/``, often in several variants: a suffix
states how weights are stored. A folder need not have every part in every variant, so each part is
selected separately. optimum writes the same names beside ``config.json``. Loads no graph.
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
"""The folder of graphs, and who writes it."""
PAST = "past_key_values."
DECODERS = ("decoder_model_merged", "model")
EMBEDDINGS = "embed_tokens"
VISION = "vision_encoder"
VARIANTS = ("q4", "q4f16", "fp32", "fp16", "bnb4", "quantized", "int8", "uint8")
"""Variants for a CPU, best first. The last three scale a whole batch by its largest value."""
ALIASES = {"q8": "quantized"}
MAX_WIDTH = 2**20
CONFIG = "config.json"


def is_community(checkpoint: Checkpoint) -> bool:
    """Return whether a model's folder has this layout."""
    return _graph_folder(checkpoint) is not None


def community_layout(checkpoint: Checkpoint, variant: str | None = None) -> Layout:
    """Select the graphs of a folder.

    Args:
        checkpoint: the folder.
        variant: how the decoder's weights are stored, such as ``q4``; the other parts use it if
            they have it. None selects what runs best on a CPU.

    Raises:
        CheckpointError: a part or the variant is missing or not an ONNX file, or ``config.json``
            does not fit.
    """
    graphs = _graph_folder(checkpoint)
    if graphs is None:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no onnx/{DECODERS[0]}*.onnx and no "
            f"onnx/{DECODERS[1]}*.onnx, nor a decoder with a cache beside config.json"
        )
    stem = next(stem for stem in DECODERS if graphs.variants(stem))
    chosen = _choose(graphs, stem, variant, is_required=True)
    file = graphs.file(stem, chosen)
    header = read_header(file)
    config = language_config(checkpoint)
    tokens = positive(config, "max_position_embeddings", MAX_SEQUENCE_TOKENS, CONFIG)
    window = positive(config, "sliding_window", MAX_SEQUENCE_TOKENS, CONFIG)
    window = window if config.get("use_sliding_window", True) else None
    vocab = positive(config, "vocab_size", MAX_WIDTH, CONFIG)
    refuse_vocabulary(header, "logits", vocab, file.name, CONFIG)
    return Layout(
        kind=FOLDERS[graphs.folder],
        precision=chosen,
        decoder=DecoderGraph(file, decoder_kind(header), head_dim=_head_dim(checkpoint)),
        embeddings=_embeddings(graphs, header, variant),
        vision=_vision(graphs, variant),
        max_sequence_tokens=usable_tokens(header, tokens or DEFAULT_SEQUENCE_TOKENS, window),
        is_batch_invariant=is_batch_invariant(header),
    )


@dataclass(frozen=True)
class _GraphFolder:
    """The folder of a model's graphs: a subfolder, or the model's own folder."""

    checkpoint: Checkpoint
    folder: str

    def file(self, stem: str, variant: str) -> Path:
        """Return the path of a variant of a part, whether or not it exists."""
        suffix = "" if variant == "fp32" else f"_{variant}"
        return self.checkpoint.path / self.folder / f"{stem}{suffix}.onnx"

    def variants(self, stem: str) -> list[str]:
        """Return the existing variants of a part, best first."""
        return [name for name in VARIANTS if self.file(stem, name).is_file()]


def _graph_folder(checkpoint: Checkpoint) -> _GraphFolder | None:
    """Return the folder of a model's graphs; None if there is no decoder."""
    for folder in FOLDERS:
        graphs = _GraphFolder(checkpoint, folder)
        found = (graphs.file(s, name) for s in DECODERS for name in graphs.variants(s))
        if (file := next(found, None)) is not None and (folder or _has_cache(checkpoint, file)):
            return graphs
    return None


def _has_cache(checkpoint: Checkpoint, file: Path) -> bool:
    """Return whether a graph is a decoder with a cache; encoders have files of the same name."""
    if checkpoint.is_preview:  # the file is still to be fetched
        return True
    try:
        return any(name.startswith(PAST) for name in read_header(file).inputs)
    except CheckpointError:
        return True  # its reader reports the cause


def _embeddings(
    graphs: _GraphFolder, decoder: GraphHeader, variant: str | None
) -> TokenGraph | None:
    if "inputs_embeds" not in decoder.inputs:
        return None
    return TokenGraph(
        graphs.file(EMBEDDINGS, _choose(graphs, EMBEDDINGS, variant, is_required=False))
    )


def _vision(graphs: _GraphFolder, variant: str | None) -> VisionGraph | None:
    if not graphs.variants(VISION):
        return None
    file = graphs.file(VISION, _choose(graphs, VISION, variant, is_required=False))
    # The input has two names; use the graph's.
    is_short = "grid_thw" in read_header(file).inputs
    return VisionGraph(file, is_own=False, names={"image_grid_thw": "grid_thw"} if is_short else {})


def _choose(graphs: _GraphFolder, stem: str, variant: str | None, *, is_required: bool) -> str:
    """Return the requested variant of a part, or the best one if the request is optional.

    Raises:
        CheckpointError: there is none.
    """
    present = graphs.variants(stem)
    wanted = ALIASES.get(variant or "", variant)
    if wanted in present:
        return wanted
    name = f"{graphs.folder}{stem}"
    if not present:
        raise CheckpointError(
            f"model {graphs.checkpoint.name!r} has no {name}*.onnx", hint="fetch the model again"
        )
    if wanted is not None and is_required:
        raise CheckpointError(
            f"model {graphs.checkpoint.name!r} has no variant {variant!r} of {name}.onnx",
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
