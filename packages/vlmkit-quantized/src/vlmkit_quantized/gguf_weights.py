"""Weights of a folder with ``config.json`` and one GGUF file, under the names of transformers.

Undoes what llama.cpp's converter changes. Reads neither tokenizer nor hyperparameters from the
file: those of ``config.json`` are used, and a file that states others is rejected. Reads no vision
tower, and no file without a folder.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized import summary
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_blocks import BLOCK_FORMATS
from vlmkit_quantized.gguf_file import GgufFile, GgufTensor, read_header
from vlmkit_quantized.gguf_names import FAMILIES, UNUSED, Family, PlainTensor, Sizes, plain_tensors
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
)
"""Fields of a file that change answers, and those of ``config.json`` that must equal them."""
MATRIX_AXES = 2
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
            FormatError: a scale is not finite.
        """
        try:
            linear = self._part().linear()
        except FormatError as error:
            raise FormatError(error.problem, self.stored.removesuffix(".weight")) from error
        if heads := self.plain.num_heads:
            rows = np.arange(self.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            linear = linear.of_rows(rows)
        return linear

    def dense(self) -> Floats:
        """Return the values of the plain weight in float32; reads them and keeps nothing.

        Raises:
            FormatError: a scale is not finite.
        """
        try:
            values = self._part().floats().reshape(self.shape)
        except FormatError as error:
            raise FormatError(error.problem, self.stored.removesuffix(".weight")) from error
        if heads := self.plain.num_heads:
            pairs = values.reshape(heads, -1, 2, *self.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(self.shape)
        return values - np.float32(self.plain.added) if self.plain.added else values

    def _part(self) -> GgufTensor:
        return self.tensor if self.expert is None else self.tensor.part(self.expert)


def file_of(checkpoint: Checkpoint) -> Path | None:
    """Return the GGUF file that holds the weights of a folder; None if another file does."""
    return weight_files.gguf_file(checkpoint)


def summary_of(checkpoint: Checkpoint) -> Summary:
    """Return which weights are quantized, by ``config.json`` and the header of the file.

    Raises:
        FormatError: they contradict each other, or are not supported.
    """
    return summary.of_gguf(*_matched(checkpoint))


def weights(checkpoint: Checkpoint) -> Iterator[GgufWeight]:
    """Yield all weights; reads the header alone.

    Raises:
        FormatError: the file contradicts ``config.json``, or is not supported.
    """
    file, found = _matched(checkpoint)
    for stored, plain in found.items():
        tensor = file.tensors[stored]
        if "{expert}" not in plain.name:
            yield GgufWeight(plain.name, stored, tensor, plain)
            continue
        for expert in range(plain.shape[0]):
            name = plain.name.format(expert=expert)
            yield GgufWeight(name, stored, tensor, plain, expert)


def _matched(checkpoint: Checkpoint) -> tuple[GgufFile, Mapping[str, PlainTensor]]:
    """Return the file, and what each of its tensors is; read the header once for a checkpoint.

    Raises:
        FormatError: the file contradicts ``config.json``, or is not supported.
    """
    return checkpoint.once("vlmkit_quantized.gguf", lambda: _match(checkpoint))


def _match(checkpoint: Checkpoint) -> tuple[GgufFile, Mapping[str, PlainTensor]]:
    """Return the same from the file.

    Raises:
        FormatError: the file contradicts ``config.json``, or is not supported.
    """
    path = file_of(checkpoint)
    if path is None:
        raise FormatError("its folder has no GGUF file, or several")
    config, model_type = checkpoint.config, checkpoint.model_type
    if (family := FAMILIES.get(model_type)) is None:
        raise FormatError(
            f"its weights are GGUF ({path.name!r}), which is not supported for the model_type "
            f"{model_type!r}; supported are {', '.join(FAMILIES)}"
        )
    if "quantization_config" in config:
        raise FormatError(
            f"its config.json has a 'quantization_config', and its weights are GGUF ({path.name!r})"
        )
    sizes = Sizes(config, family)
    try:
        file = read_header(path, has_texts=False)
    except OSError as error:
        raise FormatError(
            f"its GGUF file {path.name!r} cannot be read: {error.strerror}"
        ) from error
    _check_fields(file, family, config, path.name)
    expected = plain_tensors(sizes, family)
    _check_tensors(file, expected, path.name)
    return file, expected


def _check_fields(file: GgufFile, family: Family, config: Mapping[str, Any], name: str) -> None:
    """Require the architecture and the numbers of ``config.json``."""
    stated = file.fields.get("general.architecture")
    if stated != family.architecture:
        raise FormatError(
            f"its GGUF file {name!r} has the architecture {stated!r}, and its config.json the "
            f"model_type {config.get('model_type')!r}"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    own = {**rope, **config} if isinstance(rope, Mapping) else config
    for key, field in STATED:
        found, wanted = file.fields.get(f"{family.architecture}.{key}"), own.get(field)
        are_numbers = all(isinstance(each, int | float) for each in (found, wanted))
        if are_numbers and not math.isclose(found, wanted, rel_tol=CLOSE):  # type: ignore[arg-type]
            raise FormatError(
                f"its GGUF file {name!r} has {key} {found:g}, and its config.json has "
                f"{field} {wanted:g}"
            )


def _check_tensors(file: GgufFile, expected: Mapping[str, PlainTensor], name: str) -> None:
    """Require all tensors of a model and no others, in the shapes of ``config.json``."""
    for stored, plain in expected.items():
        if (tensor := file.tensors.get(stored)) is None:
            raise FormatError(
                f"its GGUF file {name!r} has no tensor {stored!r}, which its config.json calls for"
            )
        if _without_ones(tensor.shape) != _without_ones(plain.shape):
            raise FormatError(
                f"its GGUF file {name!r} has a tensor {stored!r} of shape {list(tensor.shape)}, "
                f"and its config.json calls for {list(plain.shape)}"
            )
    if unknown := sorted(file.tensors.keys() - expected.keys() - UNUSED):
        raise FormatError(
            f"its GGUF file {name!r} has a tensor {unknown[0]!r}, which is unknown, or for "
            "which its config.json has no place"
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of one number, which some versions of the converter drop."""
    return tuple(size for size in shape if size != 1)
