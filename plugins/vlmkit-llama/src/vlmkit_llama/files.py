"""The files of a model, checked before the library opens them: it ends the process on some errors.

Reads headers and no weights.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.weight_files import gguf_file, projector_files
from vlmkit_llama.tower_types import check_types
from vlmkit_quantized import gguf_projector, gguf_weights
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import read_header
from vlmkit_quantized.gguf_metadata import Metadata

WITH_AXES = frozenset({"qwen2vl", "qwen3vl"})
"""Architectures whose positions have several axes."""

SECTIONS, DEEP = "rope.dimension_sections", "n_deepstack_layers"
WINDOW = 112  # pixels; the library has no field for it
DEEP_OF_TOWER = "clip.vision.is_deepstack_layers"
EMBEDDINGS = "token_embd.weight"


class LayerSizes(NamedTuple):
    """The sizes from which the memory of a computation follows.

    Attributes:
        hidden: columns of the hidden states.
        inner: columns inside of a feed-forward layer; of all experts that a token takes.
        scanned: columns inside of a recurrent layer; 0 without any.
        heads: of attention; 0 without any.
        vocab: rows of the embeddings.
        weight_bytes: of all tensors of the language model.
    """

    hidden: int
    inner: int
    scanned: int
    heads: int
    vocab: int
    weight_bytes: int


class ModelFiles(NamedTuple):
    """The files of a model, and what their headers say.

    Attributes:
        file: the GGUF file of the language model.
        projector: the file with the vision tower; None of a text model.
        trained_tokens: the longest sequence that the model was made for.
        token_values: keys and values of a token in all layers with attention.
        state_values: numbers of the state of a sequence in all recurrent layers.
        feature_size: columns of the features of images.
        sizes: of the layers.
    """

    file: Path
    projector: Path | None
    trained_tokens: int
    token_values: int
    state_values: int
    feature_size: int
    sizes: LayerSizes


def checked_files(checkpoint: Checkpoint) -> ModelFiles:
    """Return the files, all of whose tensors have the shapes that their fields demand.

    Raises:
        CheckpointError: a file is broken, or its model is not supported.
    """
    return checkpoint.once("vlmkit_llama.files", lambda: _checked(checkpoint))


def _checked(checkpoint: Checkpoint) -> ModelFiles:
    file = gguf_file(checkpoint)
    if file is None:
        raise CheckpointError(f"model {checkpoint.name!r} is no GGUF file")
    try:
        for _ in gguf_weights.weights(checkpoint):
            pass
        projector = next(iter(projector_files(checkpoint)), None)
        if projector is not None:
            check_types(gguf_projector.read(projector), projector.name)
        _check_window(checkpoint)
        return _described(Metadata(file.name, read_header(file, has_texts=False)), file, projector)
    except FormatError as error:
        raise error.of_file(checkpoint) from error


def _described(found: Metadata, file: Path, projector: Path | None) -> ModelFiles:
    """Return what the headers say.

    Raises:
        FormatError: a field is absent, or the files contradict each other.
    """
    key = found.of_model
    hidden = found.size(key("embedding_length"))
    heads = found.integer(key("attention.head_count"))  # 0 without attention
    kv_heads = found.of_layers(key("attention.head_count_kv"), heads)
    head = found.size(key("attention.key_length"), hidden // max(heads, 1))
    if found.architecture in WITH_AXES and not found.has(key(SECTIONS)):
        raise found.error(f"does not state {key(SECTIONS)!r}, which llama.cpp needs")
    deep = found.integer(key(DEEP), 0)
    if projector is not None and deep != (num := _num_deep(projector)):
        raise found.error(
            f"takes features of {deep} inner layers ({key(DEEP)!r}), and the tower in "
            f"{projector.name!r} has {num}"
        )
    num_states = kv_heads.count(0)
    return ModelFiles(
        file,
        projector,
        found.size(key("context_length")),
        2 * sum(kv_heads) * head,
        num_states and num_states * _state_values(found, hidden),
        hidden * (1 + deep),
        _layer_sizes(found, hidden, heads),
    )


def _state_values(found: Metadata, hidden: int) -> int:
    """Return the numbers of the state of a sequence in a layer without attention."""
    key = found.of_model
    if found.has(key("shortconv.l_cache")):
        return (found.size(key("shortconv.l_cache")) - 1) * hidden
    inner, size = found.size(key("ssm.inner_size")), found.size(key("ssm.state_size"))
    convolved = inner + 2 * found.integer(key("ssm.group_count"), 0) * size
    return (found.size(key("ssm.conv_kernel")) - 1) * convolved + inner * size


def _layer_sizes(found: Metadata, hidden: int, heads: int) -> LayerSizes:
    key, tensors = found.of_model, found.file.tensors
    inner = found.integer(key("feed_forward_length"), hidden)  # 0 without such layers
    if found.has(key("expert_feed_forward_length")):
        num = found.size(key("expert_used_count"), 1)
        inner = max(inner, num * found.size(key("expert_feed_forward_length")))
    num_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    scanned = found.integer(key("ssm.inner_size"), 0)
    return LayerSizes(hidden, inner, scanned, heads, tensors[EMBEDDINGS].shape[0], num_bytes)


def _check_window(checkpoint: Checkpoint) -> None:
    """Require the window of the library in vision towers with windows.

    Raises:
        FormatError: ``config.json`` states another one.
    """
    tower = checkpoint.config.get("vision_config") or {}
    if (stated := tower.get("window_size", WINDOW)) != WINDOW:
        raise FormatError(
            f"its vision tower has windows of {stated!r} pixels, and llama.cpp computes with "
            f"{WINDOW}"
        )


def _num_deep(projector: Path) -> int:
    """Return how many inner layers of a vision tower have features of their own."""
    stated = gguf_projector.read(projector).fields.get(DEEP_OF_TOWER)
    return 0 if stated is None else int(np.count_nonzero(np.asarray(stated)))
