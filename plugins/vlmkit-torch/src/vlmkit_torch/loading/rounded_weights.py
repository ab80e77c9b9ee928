"""Rounds the weights of linear layers to integers while they are read, one at a time.

Chooses the layers by the model's structure, and says why others stay plain. The values are those of
``vlmkit_quantized.rounding``. What computes with them is not decided here.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit import heap
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.formats import IntegerLayer
from vlmkit_quantized.rounding import rounded
from vlmkit_quantized.rounding_schemes import RoundingScheme
from vlmkit_quantized.stored import Floats, StoredArray, StoredArrays
from vlmkit_quantized.weight import Layout, QuantizedLinear
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading.linear_modules import Owner, owners_of, ties_head
from vlmkit_torch.loading.own_readers import QuantizedLayer
from vlmkit_torch.loading.reading import auto_class
from vlmkit_torch.support.packed_forms import PackedForm
from vlmkit_torch.support.rounding_request import (
    MATRIX_AXES,
    STORED,
    SUFFIX,
    RoundingRequest,
    is_router,
)

NAMES = {"tower": "tower and projector", "head": "head"}


@dataclass(frozen=True)
class RoundedLayers:
    """The layers of a model that are rounded, and the other matrices.

    Attributes:
        request: how layers are rounded.
        layers: those that are rounded, by the names of their tensors in the files.
        plain: the number of other matrices, by the reason why they stay plain.
    """

    request: RoundingRequest
    layers: Mapping[str, IntegerLayer]
    plain: Mapping[str, int]

    @cached_property
    def method(self) -> str:
        """The scheme, with its groups, such as ``int4 in groups of 128``."""
        scheme, parts = self.request.scheme, sorted(self.request.also)
        also = f", with {' and '.join(parts)}" if parts else ""
        if not scheme.group_sizes:
            return f"{scheme.name} with a scale for each output{also}"
        sizes = {layer.columns // layer.num_groups for layer in self.layers.values()}
        groups = " and ".join(map(str, sorted(sizes, reverse=True)))
        return f"{scheme.name} in groups of {groups}{also}"

    def __str__(self) -> str:
        num, num_plain = len(self.layers), sum(self.plain.values())
        text = f"{num} of {num + num_plain} matrices rounded to {self.method}"
        if not num_plain:
            return text
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(self.plain.items()))
        return f"{text}, {num_plain} plain ({reasons})"


def rounded_layers(
    checkpoint: Checkpoint, config: PretrainedConfig, request: RoundingRequest, form: PackedForm
) -> RoundedLayers:
    """Return the layers of a model that are rounded.

    A layer that no kernel of a form can hold stays plain: it would lose digits and save nothing.

    Raises:
        CheckpointError: its files contradict each other.
        ConfigError: there is none, or a part is named in which there is none.
    """
    with torch.device("meta"):
        model = auto_class(checkpoint, config).from_config(copy.deepcopy(config))
    stored = StoredArrays(checkpoint)
    layers: dict[str, IntegerLayer] = {}
    plain: dict[str, str] = {}
    owners = _owners(checkpoint, stored, model)
    for name, owner in owners.items():
        if len(stored[name].shape) < MATRIX_AXES:
            continue
        reason = _reason(name, stored[name], owner, request)
        layer = None if reason else request.layer(*stored[name].shape)
        if layer is None:
            plain[name] = reason or "of inputs that no group size divides"
        elif form.kernel_of(layer) is None:
            plain[name] = "of sizes that no kernel holds"
        else:
            layers[name] = layer
    if not layers:
        raise ConfigError(
            f"engine.quantize = {request.scheme.name!r}: model {checkpoint.name!r} has no linear "
            f"layer that can be rounded ({_counted(plain.values())})",
            hint="leave engine.quantize out",
        )
    if "head" in request.also:
        _refuse_tied_head(checkpoint, model)
    for part in sorted(request.also - {owners[name].part for name in layers}):
        reasons = [reason for name, reason in plain.items() if owners[name].part == part]
        raise _absent_part(checkpoint, request, part, reasons)
    return RoundedLayers(request, layers, Counter(plain.values()))


def _owners(
    checkpoint: Checkpoint, stored: StoredArrays, model: PreTrainedModel
) -> Mapping[str, Owner]:
    """Return the module of each tensor.

    Raises:
        CheckpointError: the files contradict each other.
    """
    try:
        return owners_of(stored, model)
    except FormatError as error:
        raise CheckpointError(
            f"model {checkpoint.name!r} cannot be read: {error}", hint="fetch its files again"
        ) from error


def _counted(reasons: Iterable[str]) -> str:
    """Return how many matrices stay plain for each reason."""
    counts = sorted(Counter(reasons).items())
    return ", ".join(f"{count} {why}" for why, count in counts) or "it has none"


def _reason(name: str, stored: StoredArray, owner: Owner, request: RoundingRequest) -> str:
    """Return why a matrix stays plain; empty if its sizes decide."""
    module = owner.module
    if owner.is_merged or ".experts." in name:
        return "of experts"
    if isinstance(module, nn.Embedding) or "embed" in name.rpartition(SUFFIX)[0].rpartition(".")[2]:
        return "embedding"
    if owner.is_tied:
        return "head that is the embedding"
    if owner.part != "decoder" and owner.part not in request.also:
        return NAMES[owner.part]
    if is_router(owner.path):
        return "router"
    is_linear = type(module) is nn.Linear and module.weight.shape == stored.shape
    if not is_linear or not name.endswith(SUFFIX):
        return "of no linear layer"
    return "" if stored.dtype in STORED else f"stored as {stored.dtype}"


def _refuse_tied_head(checkpoint: Checkpoint, model: PreTrainedModel) -> None:
    """Refuse a head that is the embedding: rounded, it would be in memory twice.

    Raises:
        ConfigError: it is.
    """
    if ties_head(model):
        raise ConfigError(
            f"engine.quantize_also has 'head', and the head of model {checkpoint.name!r} is its "
            "embedding, which stays plain",
            hint="leave 'head' out",
        )


def _absent_part(
    checkpoint: Checkpoint, request: RoundingRequest, part: str, reasons: Iterable[str]
) -> ConfigError:
    """Return the error of a part in which nothing is rounded; reports would name it."""
    return ConfigError(
        f"engine.quantize_also has {part!r}, and model {checkpoint.name!r} has no linear layer "
        f"there that {request.scheme.name} can round ({_counted(reasons)})",
        hint=f"leave {part!r} out",
    )


@dataclass(frozen=True)
class RoundedWeight:
    """A plain weight of the files, which is rounded when it is read.

    Attributes:
        checkpoint: the checkpoint.
        name: of its tensor.
        stored: its tensor.
        scheme: how it is rounded.
    """

    checkpoint: Checkpoint
    name: str
    stored: StoredArray
    scheme: RoundingScheme

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.stored.shape

    @property
    def tensors(self) -> tuple[str, ...]:
        """The name of its tensor."""
        return (self.name,)

    @property
    def layout(self) -> Layout | None:
        """The form of the rounded weight."""
        size = self.scheme.group_size(self.shape[1])
        return None if size is None else Layout(self.scheme.bits, size)

    def packed(self) -> QuantizedLinear:
        """Return the rounded weight; reads it and keeps nothing.

        Raises:
            CheckpointError: it has numbers that are not finite.
        """
        try:
            return rounded(self.stored.floats(), self.scheme, torch.get_num_threads())
        except FormatError as error:
            raise CheckpointError(
                f"model {self.checkpoint.name!r}: weight {self.name!r} {error.problem}",
                hint="fetch its files again",
            ) from error

    def dense(self) -> Floats:
        """Return the rounded values in float32.

        Raises:
            CheckpointError: the weight has numbers that are not finite.
        """
        return self.packed().dense()


class RoundingReader(WeightReader):
    """Plain weights, rounded one by one.

    Args:
        checkpoint: the files.
        rounding: the layers.
    """

    def __init__(self, checkpoint: Checkpoint, rounding: RoundedLayers) -> None:
        self._checkpoint, self._rounding = checkpoint, rounding

    def weights(self) -> Mapping[str, QuantizedLayer]:
        """Return the rounded weights; reads none."""
        stored, scheme = StoredArrays(self._checkpoint), self._rounding.request.scheme
        return {
            name: QuantizedLayer(RoundedWeight(self._checkpoint, name, stored[name], scheme))
            for name in self._rounding.layers
        }

    def reading(self) -> AbstractContextManager[None]:
        """Return what is freed to the system; otherwise a third of the model stays allocated."""
        return heap.returning_large_blocks()
