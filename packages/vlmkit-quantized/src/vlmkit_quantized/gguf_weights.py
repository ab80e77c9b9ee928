"""Weights of a folder with ``config.json`` and a GGUF file, under the names of transformers.

A model with images has a second file, with its vision tower (``mmproj``). Undoes what llama.cpp's
converter changes. Reads neither tokenizer nor hyperparameters from the files: those of
``config.json`` are used, and a file that states others is rejected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized import gguf_projector, summary
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_blocks import BLOCK_FORMATS
from vlmkit_quantized.gguf_file import GgufFile, GgufTensor, read_header
from vlmkit_quantized.gguf_models import Decoder, decoder_of, tower_of
from vlmkit_quantized.gguf_names import UNUSED, Join, PlainTensor
from vlmkit_quantized.gguf_projector import Projector
from vlmkit_quantized.stored import Floats
from vlmkit_quantized.summary import Summary
from vlmkit_quantized.weight import Layout, QuantizedLinear

METHOD = "gguf"
STATED = (
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
    ("attention.layer_norm_rms_epsilon", "norm_eps"),
    ("attention.layer_norm_epsilon", "norm_epsilon"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.layer_norm_epsilon", "norm_eps"),
    ("attention.scale", "attention_multiplier"),
    ("attention.sliding_window", "sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("embedding_scale", "embedding_multiplier"),
    ("expert_used_count", "num_experts_per_tok"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("logit_scale", "logit_scale"),
    ("logit_scale", "logits_scaling"),
    ("residual_scale", "residual_multiplier"),
    ("rope.freq_base", "rope_theta"),
    ("rope.scaling.factor", "factor"),
    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
)
"""Fields of a file that change answers, and those of ``config.json`` that must equal them."""
MATRIX_AXES = 2
SECTIONS = "rope.dimension_sections"
CLOSE = 1e-6  # files have floats of 32 bits


@dataclass(frozen=True)
class GgufWeight:
    """A weight of a file.

    Attributes:
        name: its name in a plain checkpoint.
        stored: the name of the tensor in the file.
        tensor: the tensor.
        plain: what the tensor is.
        expert: the number of the expert that it belongs to; None if it is the whole tensor.
    """

    name: str
    stored: str
    tensor: GgufTensor
    plain: PlainTensor
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""
        return self.plain.shape if self.expert is None else self.plain.shape[1:]

    @property
    def layout(self) -> Layout | None:
        """The form of the weight; None if the tensor is plain."""
        found = BLOCK_FORMATS.get(self.tensor.type)
        return found.layout if found and len(self.shape) == MATRIX_AXES else None

    def packed(self) -> QuantizedLinear:
        """Return the weight in its quantized form, with the rows in the order of the plain weight.

        The weight must have a layout.

        Raises:
            FormatError: a scale is not finite, or the file has changed.
        """
        try:
            linear = self._part().linear()
        except FormatError as error:
            raise self._named(error) from error
        if heads := self.plain.num_heads:
            rows = np.arange(self.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            linear = linear.of_rows(rows)
        return linear

    def dense(self) -> Floats:
        """Return the values of the plain weight in float32; reads them and keeps nothing.

        Raises:
            FormatError: a scale is not finite, or the file has changed.
        """
        try:
            values = self._part().floats().reshape(self.shape)
        except FormatError as error:
            raise self._named(error) from error
        if heads := self.plain.num_heads:
            pairs = values.reshape(heads, -1, 2, *self.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(self.shape)
        if self.plain.is_log:
            return self._log(values)
        return values - np.float32(self.plain.added) if self.plain.added else values

    def _log(self, values: Floats) -> Floats:
        """Return the logarithm of negated values.

        Raises:
            FormatError: one is not below zero.
        """
        if not (values < 0).all():
            raise self._named(FormatError("has numbers that are not below zero"))
        logarithms: Floats = np.log(-values)
        return logarithms

    def _named(self, error: FormatError) -> FormatError:
        """Return an error with the tensor and its file."""
        problem = f"{error.problem}, in {self.tensor.file.name!r}"
        return FormatError(problem, self.stored.removesuffix(".weight"))

    def _part(self) -> GgufTensor:
        if self.expert is None:
            return self.tensor
        # Some versions of the converter add axes of one number, also in front of the experts.
        return replace(self.tensor, shape=self.plain.shape).part(self.expert)


@dataclass(frozen=True)
class CompositeWeight:
    """A weight that consists of several tensors.

    Attributes:
        name: its name in a plain checkpoint.
        parts: the weights that its tensors would be.
        join: how they are joined.
    """

    name: str
    parts: Sequence[GgufWeight]
    join: Join

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""
        first, *rest = self.parts[0].shape
        if self.join is Join.ROWS:
            return (sum(part.shape[0] for part in self.parts), *rest)
        return (first, rest[0], len(self.parts), *rest[1:])

    @property
    def layout(self) -> None:
        """None: the weight is expanded."""
        return

    def packed(self) -> QuantizedLinear:
        """Raise an error: the weight has no layout."""
        raise FormatError("is joined from several tensors, and has no quantized form", self.name)

    def dense(self) -> Floats:
        """Return the values of the plain weight in float32; reads them and keeps nothing.

        Raises:
            FormatError: a scale is not finite, or the file has changed.
        """
        values = [part.dense() for part in self.parts]
        return np.concatenate(values) if self.join is Join.ROWS else np.stack(values, axis=2)


@dataclass(frozen=True)
class UnusedWeight:
    """A weight that no file has, because no answer depends on it: zeros.

    Attributes:
        name: its name in a plain checkpoint.
        shape: its shape.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def layout(self) -> None:
        """None: there is nothing to unpack."""
        return

    def packed(self) -> QuantizedLinear:
        """Raise an error: the weight has no layout."""
        raise FormatError("is in no file, and has no quantized form", self.name)

    def dense(self) -> Floats:
        """Return zeros."""
        return np.zeros(self.shape, np.float32)


Weight = GgufWeight | CompositeWeight | UnusedWeight


@dataclass(frozen=True, slots=True)
class Matched:
    """The files of a model, compared with its ``config.json``.

    Attributes:
        file: the header of the file with the decoder.
        tensors: what each of its tensors is.
        projector: the file with the vision tower; None of a text model.
    """

    file: GgufFile
    tensors: Mapping[str, PlainTensor]
    projector: Projector | None

    def parts(self) -> Iterator[tuple[GgufFile, Mapping[str, PlainTensor]]]:
        """Yield each file with what its tensors are."""
        yield self.file, self.tensors
        if self.projector is not None:
            yield self.projector.file, self.projector.tensors


def file_of(checkpoint: Checkpoint) -> Path | None:
    """Return the GGUF file that holds the weights of a folder; None if another file does."""
    return weight_files.gguf_file(checkpoint)


def summary_of(checkpoint: Checkpoint) -> Summary:
    """Return which weights are quantized, by ``config.json`` and the headers of the files.

    Raises:
        FormatError: they contradict each other, or are not supported.
    """
    found = _matched(checkpoint)
    names = [path.name for path in weight_files.projector_files(checkpoint) if found.projector]
    return summary.of_gguf(list(found.parts()), *names)


def weights(checkpoint: Checkpoint) -> Iterator[Weight]:
    """Yield all weights; reads the headers alone.

    Raises:
        FormatError: a file contradicts ``config.json``, or is not supported.
    """
    found = _matched(checkpoint)
    joined: dict[str, tuple[Join, list[GgufWeight]]] = {}
    for file, tensors in found.parts():
        for stored, plain in tensors.items():
            for weight in _weights_of(stored, file.tensors[stored], plain):
                if plain.join is None:
                    yield weight
                else:
                    joined.setdefault(plain.name, (plain.join, []))[1].append(weight)
    for name, (join, parts) in joined.items():
        yield CompositeWeight(name, parts, join)
    for plain in found.projector.absent if found.projector else ():
        yield UnusedWeight(plain.name, plain.shape)


def _weights_of(stored: str, tensor: GgufTensor, plain: PlainTensor) -> Iterator[GgufWeight]:
    """Yield the weight that a tensor is, or those of the experts in it."""
    if "{expert}" not in plain.name:
        yield GgufWeight(plain.name, stored, tensor, plain)
        return
    for expert in range(plain.shape[0]):
        yield GgufWeight(plain.name.format(expert=expert), stored, tensor, plain, expert)


def _matched(checkpoint: Checkpoint) -> Matched:
    """Return the files and what their tensors are; read each header once for a checkpoint.

    Raises:
        FormatError: a file contradicts ``config.json``, or is not supported.
    """
    return checkpoint.once("vlmkit_quantized.gguf", lambda: _match(checkpoint))


def _match(checkpoint: Checkpoint) -> Matched:
    """Return the same from the files.

    Raises:
        FormatError: a file contradicts ``config.json``, or is not supported.
    """
    path = file_of(checkpoint)
    if path is None:
        raise FormatError("its folder has no GGUF file, or several")
    config = checkpoint.config
    decoder = decoder_of(config)
    if "quantization_config" in config:
        raise FormatError(
            f"its config.json has a 'quantization_config', and its weights are GGUF ({path.name!r})"
        )
    try:
        file = read_header(path, has_texts=False)
    except OSError as error:
        raise FormatError(
            f"its GGUF file {path.name!r} cannot be read: {error.strerror}"
        ) from error
    _check_fields(file, decoder, config, path.name)
    expected = decoder.tensors(has_head="output.weight" in file.tensors)
    _check_tensors(file, expected, path.name, UNUSED)
    return Matched(file, expected, _projector(checkpoint, path.name, decoder.width))


def _projector(checkpoint: Checkpoint, name: str, width: int) -> Projector | None:
    """Return the vision tower of a model; None of a text model.

    Args:
        checkpoint: the model.
        name: the name of the file with the decoder.
        width: the size of an embedding of its decoder.

    Raises:
        FormatError: a model with images has no file with a tower, or a text model has one; or the
            file is of another model.
    """
    path, found = gguf_projector.file_of(checkpoint), tower_of(checkpoint.config)
    if found is None:
        if path is None:
            return None
        raise FormatError(
            f"it has a file with a vision tower, {path.name!r}, and is a text model (model_type "
            f"{checkpoint.model_type!r}): move that file to another folder"
        )
    if path is None:
        raise FormatError(
            f"its config.json has a vision tower, and no GGUF file with it is beside {name!r}: put "
            "the model's 'mmproj' file there"
        )
    projector = gguf_projector.matched(checkpoint, path, *found, width)
    _check_tensors(projector.file, projector.tensors, path.name, found[0].unused)
    return projector


def _check_fields(file: GgufFile, decoder: Decoder, whole: Mapping[str, Any], name: str) -> None:
    """Require the architecture and the numbers of ``config.json``."""
    stated, config = file.text("general.architecture"), decoder.config
    if stated not in decoder.architectures:
        raise FormatError(
            f"its GGUF file {name!r} has the architecture {stated!r}, and its config.json the "
            f"model_type {whole.get('model_type')!r}"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    own = {**rope, **config} if isinstance(rope, Mapping) else config
    for key, field in STATED:
        found, wanted = file.fields.get(f"{stated}.{key}"), own.get(field)
        are_numbers = all(isinstance(each, int | float) for each in (found, wanted))
        if are_numbers and not math.isclose(found, wanted, rel_tol=CLOSE):  # type: ignore[arg-type]
            raise FormatError(
                f"its GGUF file {name!r} has {key} {found:g}, and its config.json has "
                f"{field} {wanted:g}"
            )
    for key, value in decoder.fields.items():
        found = file.fields.get(f"{stated}.{key}")
        listed = found.tolist() if isinstance(found, np.ndarray) else found
        if isinstance(listed, bool) or listed != value:
            raise FormatError(
                f"its GGUF file {name!r} has {key} {listed}, and its config.json calls for {value}"
            )
    found, wanted = file.fields.get(f"{stated}.{SECTIONS}"), own.get("mrope_section")
    if isinstance(found, np.ndarray) and isinstance(wanted, list):
        listed = found.tolist()
        if listed[: len(wanted)] != wanted or any(listed[len(wanted) :]):
            raise FormatError(
                f"its GGUF file {name!r} has {SECTIONS} {listed}, and its config.json has "
                f"mrope_section {wanted}"
            )


def _check_tensors(
    file: GgufFile, expected: Mapping[str, PlainTensor], name: str, unused: frozenset[str]
) -> None:
    """Require all tensors of a model and no others, in the shapes of ``config.json``."""
    for stored, plain in expected.items():
        if (tensor := file.tensors.get(stored)) is None:
            raise FormatError(
                f"its GGUF file {name!r} has no tensor {stored!r}, which its config.json calls for"
            )
        shape = plain.stored or plain.shape
        if _without_ones(tensor.shape) != _without_ones(shape):
            raise FormatError(
                f"its GGUF file {name!r} has a tensor {stored!r} of shape {list(tensor.shape)}, "
                f"and its config.json calls for {list(shape)}"
            )
    if unknown := sorted(file.tensors.keys() - expected.keys() - unused):
        raise FormatError(
            f"its GGUF file {name!r} has a tensor {unknown[0]!r}, which is unknown, or for "
            "which its config.json has no place"
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of one number, which some versions of the converter drop."""
    return tuple(size for size in shape if size != 1)
