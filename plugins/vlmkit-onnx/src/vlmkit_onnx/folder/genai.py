"""Reads folders of onnxruntime-genai: ``genai_config.json`` names every file, input and output.

Does not need the package, and loads no graph.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.graph_facts import (
    MAX_SEQUENCE_TOKENS,
    decoder_kind,
    is_batch_invariant,
    refuse_vocabulary,
    stored_precision,
    usable_tokens,
)
from vlmkit_onnx.folder.graph_header import GraphHeader, read_header
from vlmkit_onnx.folder.layout import DecoderGraph, Layout, TokenGraph, VisionGraph

FILE = "genai_config.json"
MAX_WIDTH = 2**20

FileName = Annotated[str, Meta(max_length=255, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]*\.onnx\Z")]
ValueName = Annotated[str, Meta(min_length=1, max_length=255)]
Width = Annotated[int, Meta(ge=1, le=MAX_WIDTH)]
Names = dict[str, Any]  # also holds groups of names for audio and others


class Part(msgspec.Struct, frozen=True):
    """One graph: its file, and its inputs and outputs by the format's names."""

    filename: FileName
    inputs: Names = {}
    outputs: Names = {}


class SlidingWindow(msgspec.Struct, frozen=True):
    """How many tokens a token sees; None, zero or less means all."""

    window_size: int | None = None


class Decoder(Part, frozen=True):
    """The language model."""

    head_size: Width | None = None
    sliding_window: SlidingWindow | None = None
    pipeline: list[Any] | None = None


class Model(msgspec.Struct, frozen=True):
    """The parts of the model, and its longest sequence."""

    decoder: Decoder
    context_length: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE_TOKENS)]
    vocab_size: Width | None = None
    vision: Part | None = None
    embedding: Part | None = None
    encoder: dict[str, Any] | None = None
    image_token_id: int | None = None


class GenaiConfig(msgspec.Struct, frozen=True):
    """The part of the file that vlmkit reads."""

    model: Model


def genai_layout(checkpoint: Checkpoint) -> Layout:
    """Read a folder.

    Raises:
        CheckpointError: the configuration is broken, names missing files, or describes another
            kind of model.
    """
    model = _read(checkpoint).model
    if model.encoder or model.decoder.pipeline:
        raise CheckpointError(
            f"{FILE!r} of model {checkpoint.name!r} splits the decoder, which is not supported"
        )
    file = checkpoint.path / model.decoder.filename
    header = read_header(file)
    decoder = _decoder(file, header, model.decoder)
    logits = decoder.names.get("logits", "logits")
    refuse_vocabulary(header, logits, model.vocab_size, file.name, FILE)
    return Layout(
        kind="onnxruntime-genai",
        precision=stored_precision(header),
        decoder=decoder,
        embeddings=_embeddings(checkpoint, model, decoder, header),
        vision=_vision(checkpoint, model.vision),
        max_sequence_tokens=usable_tokens(header, model.context_length, _window(model.decoder)),
        is_batch_invariant=is_batch_invariant(header),
    )


def _read(checkpoint: Checkpoint) -> GenaiConfig:
    content = checkpoint.read_json(FILE)
    try:
        return msgspec.convert(content, GenaiConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{FILE!r} of model {checkpoint.name!r} is not a configuration of a language model"
        ) from error


def _decoder(file: Path, header: GraphHeader, part: Decoder) -> DecoderGraph:
    """Return the decoder; names that the configuration omits have defaults."""
    usual = DecoderGraph(file, decoder_kind(header))
    return DecoderGraph(
        file,
        usual.kind,
        past_key=_template(part.inputs, "past_key_names", usual.past_key),
        past_value=_template(part.inputs, "past_value_names", usual.past_value),
        present_key=_template(part.outputs, "present_key_names", usual.present_key),
        present_value=_template(part.outputs, "present_value_names", usual.present_value),
        names=_names(part),
        head_dim=part.head_size,
    )


def _window(part: Decoder) -> int | None:
    size = part.sliding_window.window_size if part.sliding_window else None
    return size if size is not None and size > 0 else None


def _embeddings(
    checkpoint: Checkpoint, model: Model, decoder: DecoderGraph, header: GraphHeader
) -> TokenGraph | None:
    if decoder.names.get("inputs_embeds", "inputs_embeds") not in header.inputs:
        return None
    if model.embedding is None:
        raise CheckpointError(
            f"the decoder of model {checkpoint.name!r} takes embeddings, and {FILE!r} names no "
            "graph that makes them"
        )
    file = checkpoint.path / model.embedding.filename
    return TokenGraph(file, _names(model.embedding), model.image_token_id)


def _vision(checkpoint: Checkpoint, part: Part | None) -> VisionGraph | None:
    if part is None:
        return None
    return VisionGraph(checkpoint.path / part.filename, is_own=False, names=_names(part))


def _names(part: Part) -> Mapping[str, str]:
    """Return a graph's names of inputs and outputs, by the format's names, which vlmkit shares."""
    named = {**part.inputs, **part.outputs}
    return {
        word: name
        for word, name in named.items()
        if isinstance(name, str) and name != word and not word.endswith("_names")
    }


def _template(names: Names, word: str, usual: str) -> str:
    """Return a name with a placeholder for the layer's number.

    Raises:
        CheckpointError: it has none, or other placeholders.
    """
    template = names.get(word, usual)
    if not isinstance(template, str) or not re.fullmatch(r"[^%]{0,200}%d[^%]{0,50}", template):
        raise CheckpointError(f"{word!r} in {FILE!r} is not a name with one '%d' in it")
    return template
