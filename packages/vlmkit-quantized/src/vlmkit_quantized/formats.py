"""Chooses the format of a quantized checkpoint, and supplies its weights.

A row of ``FORMATS`` per format. Errors name the checkpoint and the layer.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection
from vlmkit_quantized import awq, bitsandbytes, compressed_tensors, gguf_weights, gptq, summary
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_weights import Weight
from vlmkit_quantized.layers import MATRIX_AXES, Outline
from vlmkit_quantized.stored import Floats, StoredArrays
from vlmkit_quantized.summary import Summary
from vlmkit_quantized.weight import Layout, QuantizedLinear, QuantizedWeight

_HEAD = re.compile(r"(^|\.)lm_head\.(?!(weight|bias)$)")


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Attributes:
        outlines: returns what headers show, and rejects what contradicts ``quantization_config``.
        weights: yields the weights.
    """

    outlines: Callable[[StoredArrays, Mapping[str, Any]], list[Outline]]
    weights: Callable[[StoredArrays, Mapping[str, Any]], Iterator[QuantizedWeight]]


@dataclass(frozen=True, slots=True)
class IntegerLayer:
    """The weight of a linear layer whose codes are integers, by headers.

    Attributes:
        rows: its outputs.
        columns: its inputs.
        num_groups: groups of a row, each with a scale.
        bits: of a code.
    """

    rows: int
    columns: int
    num_groups: int
    bits: int


FORMATS: Mapping[str, Format] = {
    awq.METHOD: Format(awq.outlines, awq.weights),
    bitsandbytes.METHOD: Format(bitsandbytes.outlines, bitsandbytes.weights),
    compressed_tensors.METHOD: Format(compressed_tensors.outlines, compressed_tensors.weights),
    gptq.METHOD: Format(gptq.outlines, gptq.weights),
}
"""The formats, by the ``quant_method`` of ``quantization_config``."""

FLOATS = frozenset({"fp8", "mxfp8", "mxfp4"})
"""Methods whose weights are 8-bit or 4-bit floats, which transformers reads."""


@dataclass(frozen=True)
class ReadWeight:
    """A quantized weight of a checkpoint, whose errors name both.

    Attributes:
        checkpoint: the checkpoint.
        stored: the weight.
    """

    checkpoint: Checkpoint
    stored: QuantizedWeight

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""
        return self.stored.shape

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors in the files that it consists of."""
        return self.stored.tensors

    @property
    def layout(self) -> Layout:
        """The form of the weight, before its numbers are read."""
        return self.stored.layout

    def packed(self) -> QuantizedLinear:
        """Return the weight in its quantized form; reads it and keeps nothing.

        Raises:
            CheckpointError: its numbers contradict each other.
        """
        try:
            return self.stored.read()
        except FormatError as error:
            layer = self.stored.name.removesuffix(".weight")
            raise FormatError(error.problem, layer).of(self.checkpoint) from error

    def dense(self) -> Floats:
        """Return the values in float32; see :meth:`.QuantizedLinear.dense`.

        Raises:
            CheckpointError: its numbers contradict each other.
        """
        return self.packed().dense()


@dataclass(frozen=True)
class ReadTensor:
    """A weight of a GGUF file, whose errors name it and its checkpoint.

    Attributes:
        checkpoint: the checkpoint.
        stored: the weight.
    """

    checkpoint: Checkpoint
    stored: Weight

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""
        return self.stored.shape

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors in safetensors files, which are none."""
        return ()

    @property
    def layout(self) -> Layout | None:
        """The form of the weight; None if it is plain."""
        return self.stored.layout

    def packed(self) -> QuantizedLinear:
        """Return the weight in its quantized form; it must have a layout.

        Raises:
            CheckpointError: its scales are not finite.
        """
        try:
            return self.stored.packed()
        except FormatError as error:
            raise error.of(self.checkpoint) from error

    def dense(self) -> Floats:
        """Return the values in float32; see :meth:`.GgufWeight.dense`.

        Raises:
            CheckpointError: its scales are not finite.
        """
        try:
            return self.stored.dense()
        except FormatError as error:
            raise error.of(self.checkpoint) from error


def is_gguf(checkpoint: Checkpoint) -> bool:
    """Return whether the weights of a folder are in a GGUF file."""
    return gguf_weights.file_of(checkpoint) is not None


def quantizes_weights_alone(checkpoint: Checkpoint) -> bool:
    """Return whether nothing but weights is quantized: no activations, keys or values."""
    fields = checkpoint.config.get("quantization_config")
    return not isinstance(fields, Mapping) or not compressed_tensors.quantizes_more(fields)


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why the weights of a checkpoint cannot be read; None if they seem readable.

    Reads ``config.json`` and headers. Contradictions among numbers show in :func:`weights`, or when
    a weight is read.
    """
    try:
        if is_gguf(checkpoint):
            gguf_weights.summary_of(checkpoint)
            return None
        found, fields = _format_of(checkpoint)
        stored = StoredArrays(checkpoint)
        found.outlines(stored, fields)
        _check_head(checkpoint, stored)
    except FormatError as error:
        return error.objection()
    except CheckpointError as error:
        return Objection(str(error), hint=error.hint)
    return None


def summary_of(checkpoint: Checkpoint) -> Summary:
    """Return how many weights the plain model has and which are quantized, by headers.

    Covers 8-bit and 4-bit floats, too, which transformers reads.

    Raises:
        CheckpointError: they are not supported, or contradict ``quantization_config``.
    """
    return checkpoint.once("vlmkit_quantized.summary", lambda: _summarize(checkpoint))


def _summarize(checkpoint: Checkpoint) -> Summary:
    fields = checkpoint.config.get("quantization_config")
    method = fields.get("quant_method") if isinstance(fields, Mapping) else None
    try:
        if is_gguf(checkpoint):
            return gguf_weights.summary_of(checkpoint)
        stored = StoredArrays(checkpoint)
        if isinstance(fields, Mapping) and method in FLOATS:
            return summary.of_layers(method, stored, fields, summary.float_outlines(stored))
        found, fields = _format_of(checkpoint)
        method = method or bitsandbytes.METHOD  # as its first versions wrote it
        return summary.of_layers(method, stored, fields, found.outlines(stored, fields))
    except FormatError as error:
        raise error.of(checkpoint) from error


def integer_layers(checkpoint: Checkpoint) -> Mapping[str, IntegerLayer]:
    """Return the weights with integers in groups of a row, by headers.

    Weights whose codes stand for floats are left out, and those of GGUF whose groups have offsets.

    Raises:
        CheckpointError: they are not supported, or contradict ``quantization_config``.
    """
    return checkpoint.once(
        "vlmkit_quantized.integer_layers", lambda: _find_integer_layers(checkpoint)
    )


def _find_integer_layers(checkpoint: Checkpoint) -> Mapping[str, IntegerLayer]:
    try:
        if is_gguf(checkpoint):
            return dict(filter(None, map(_gguf_layer, gguf_weights.weights(checkpoint))))
        found, fields = _format_of(checkpoint)
        stored = StoredArrays(checkpoint)
        layers = (_integer_layer(stored, outline) for outline in found.outlines(stored, fields))
        return {f"{name}.weight": layer for name, layer in filter(None, layers)}
    except FormatError as error:
        raise error.of(checkpoint) from error


def _integer_layer(stored: StoredArrays, outline: Outline) -> tuple[str, IntegerLayer] | None:
    """Return the name of a layer and its sizes; None if it has no groups of integers."""
    name = outline.tensors[0].rpartition(".")[0]
    parts = stored.layers[name]
    if "qweight" in parts:  # scales of GPTQ and AWQ are transposed
        num_groups, rows = parts["scales"].shape
    elif "weight_packed" in parts and parts["weight_packed"].dtype in ("I32", "U32"):
        rows = parts["weight_packed"].shape[0]
        scales = parts["weight_scale"].shape
        if len(scales) != MATRIX_AXES or scales[0] != rows:
            return None
        num_groups = scales[1]
    elif "weight" in parts and parts["weight"].dtype == "I8":
        rows = parts["weight"].shape[0]
        scales = parts["SCB"].shape if "SCB" in parts else parts["weight_scale"].shape
        if len(scales) == MATRIX_AXES and scales[0] not in (1, rows):
            return None
        num_groups = scales[1] if len(scales) == MATRIX_AXES else 1
    else:
        return None
    columns, rest = divmod(outline.num_weights, rows)
    return None if rest else (name, IntegerLayer(rows, columns, num_groups, outline.bits))


def _gguf_layer(weight: Weight) -> tuple[str, IntegerLayer] | None:
    """Return the name and sizes of a weight of GGUF; None if it has no groups of integers."""
    layout = weight.layout
    if layout is None or layout.beyond:
        return None
    rows, columns = weight.shape
    return weight.name, IntegerLayer(rows, columns, columns // layout.group_size, layout.bits)


def weights(checkpoint: Checkpoint) -> Mapping[str, ReadWeight | ReadTensor]:
    """Return the quantized weights by their names in a plain checkpoint; all of a GGUF file.

    Raises:
        CheckpointError: they are not supported, or contradict ``quantization_config``.
    """
    try:
        if is_gguf(checkpoint):
            return {it.name: ReadTensor(checkpoint, it) for it in gguf_weights.weights(checkpoint)}
        found, fields = _format_of(checkpoint)
        stored = StoredArrays(checkpoint)
        _check_head(checkpoint, stored)
        listed = found.weights(stored, fields)
        return {weight.name: ReadWeight(checkpoint, weight) for weight in listed}
    except FormatError as error:
        raise error.of(checkpoint) from error


def _check_head(checkpoint: Checkpoint, stored: StoredArrays) -> None:
    """Reject a quantized head that is the embedding, which is plain.

    Raises:
        FormatError: there is one.
    """
    text = checkpoint.answering.get("text_config")
    configs = (checkpoint.answering, text if isinstance(text, Mapping) else {})
    if not any(config.get("tie_word_embeddings") is True for config in configs):
        return
    if layer := next(
        (name[: found.end() - 1] for name in stored if (found := _HEAD.search(name))), None
    ):
        raise FormatError(
            "is quantized and is the embedding ('tie_word_embeddings'), not supported", layer
        )


def _format_of(checkpoint: Checkpoint) -> tuple[Format, Mapping[str, Any]]:
    fields = checkpoint.config.get("quantization_config")
    if not isinstance(fields, Mapping):
        raise FormatError("its config.json has no 'quantization_config'")
    method = fields.get("quant_method")
    if method is None and (fields.get("load_in_4bit") or fields.get("load_in_8bit")):
        method = bitsandbytes.METHOD  # as its first versions wrote it
    if (found := FORMATS.get(str(method))) is None:
        raise FormatError(f"its weights are quantized by {method!r}, which is not supported")
    return found, fields
