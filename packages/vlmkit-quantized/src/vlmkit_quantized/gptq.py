"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the input of a layer.

A layer has ``qweight``, ``qzeros``, ``scales`` and mostly ``g_idx``, the group of each column.
Format version 1 stores zero points minus one, and version 2 stores them as they are. Files often
state the wrong one, so symmetric zero points determine the version.

Source: the format of AutoGPTQ and GPTQModel, whose ``dequantize_weight`` defines the values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.layers import (
    Outline,
    Parts,
    quantized_layers,
    require_matrices,
    require_types,
)
from vlmkit_quantized.packing import unpack_words
from vlmkit_quantized.stated import Stated, check_group_size, one_of
from vlmkit_quantized.stored import StoredArrays
from vlmkit_quantized.weight import ANY_ORDER, Layout, QuantizedLinear, QuantizedWeight

METHOD = "gptq"
BITS = (2, 3, 4, 8)
VERSIONS = {"gptq": 1, "gptq_v2": 2}
PACKED = frozenset({"qweight", "qzeros", "scales", "g_idx"})
NEEDED = ("qweight", "qzeros", "scales")
KNOWN = PACKED | {"bias"}
UNSUPPORTED = {
    "rotation": "a rotation of weights and activations",
    "adapter": "an adapter beside its layers",
    "is_marlin_format": "the layout of Marlin's kernels",
}


@dataclass(frozen=True, slots=True)
class GptqConfig:
    """What ``quantization_config`` states about the layers.

    Attributes:
        sizes: the bits and group sizes that layers may have; -1 is one group.
        is_symmetric: whether all zero points are the middle code; None if not stated.
        has_order: whether columns may be in groups in any order (act-order).
        version: of the format; None if not stated.
        wraps: whether the tool stores a zero point of 0 in version 1 by borrowing from the next.
    """

    sizes: frozenset[tuple[int, int]]
    is_symmetric: bool | None
    has_order: bool
    version: int | None
    wraps: bool


def config_of(fields: Mapping[str, Any]) -> GptqConfig:
    """Return what ``quantization_config`` states.

    Raises:
        FormatError: it states something that is not supported.
    """
    stated = Stated(fields)
    stated.refuse(UNSUPPORTED)
    version = stated.word("checkpoint_format", "format")
    if version:
        one_of(version, VERSIONS, "the layout")
    one_of(stated.word("pack_dtype") or "int32", ("int32",), "words of type")
    sizes = _sizes(stated)
    for bits, size in sizes:
        one_of(bits, BITS, "weights of bits")
        check_group_size(size)
    meta = stated.get("meta")
    quantizers = meta.get("quantizer") if isinstance(meta, Mapping) else None
    return GptqConfig(
        sizes=sizes,
        is_symmetric=stated.flag("sym", default=False) if stated.get("sym") is not None else None,
        has_order=stated.flag("desc_act", default=False),
        version=VERSIONS.get(version),
        wraps="gptqmodel" in str(quantizers).lower(),
    )


def _sizes(stated: Stated) -> frozenset[tuple[int, int]]:
    """Return the pairs of bits and group size that layers may have.

    ``dynamic`` changes them for layers by patterns. Only its values are used, because the tensors
    show which of them a layer has.
    """
    bits, size = stated.integer("bits"), stated.integer("group_size")
    dynamic = stated.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise FormatError("its quantization_config needs an object in 'dynamic'")
    sizes = {(bits, size)}
    for changes in dynamic.values():
        if isinstance(changes, Mapping):
            changed = Stated(changes)
            changed.refuse(UNSUPPORTED)
            sizes.add(
                (
                    changed.integer("bits", default=bits),
                    changed.integer("group_size", default=size),
                )
            )
    return frozenset(sizes)


@dataclass(frozen=True, slots=True)
class GptqLayer:
    """A layer in the files.

    Attributes:
        name: its name.
        parts: its tensors by the last part of their names.
        bits: of a weight.
        columns: its inputs.
        group_size: columns in a group; the last group may have fewer.
    """

    name: str
    parts: Parts
    bits: int
    columns: int
    group_size: int

    @property
    def rows(self) -> int:
        """Its outputs."""
        return self.parts["qweight"].shape[1]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that its weight consists of."""
        return tuple(f"{self.name}.{part}" for part in self.parts if part in PACKED)

    def stored_zeros(self) -> NDArray[np.uint8]:
        """Return the zero points as stored, of shape ``[groups, rows]``."""
        return unpack_words(self.parts["qzeros"].read(), self.bits, self.rows)


def layers_of(stored: StoredArrays, config: GptqConfig) -> list[GptqLayer]:
    """Return the quantized layers of a checkpoint, by its headers.

    Raises:
        FormatError: tensors are absent, unknown, or contradict the configuration.
    """
    found = quantized_layers(stored, PACKED, NEEDED, KNOWN)
    return [_layer(name, parts, config) for name, parts in found]


def _layer(name: str, parts: Parts, config: GptqConfig) -> GptqLayer:
    if config.has_order and "g_idx" not in parts:
        raise FormatError("has no 'g_idx', which its order of columns ('desc_act') needs", name)
    require_types(name, parts, dict.fromkeys(("qweight", "qzeros", "g_idx"), ("I32", "U32")))
    require_matrices(name, parts, NEEDED)
    matching = [
        GptqLayer(name, parts, bits, columns, columns if size == -1 else size)
        for bits, size in sorted(config.sizes)
        if (columns := _columns(parts, bits))
        and _shapes(parts, bits, columns, columns if size == -1 else size)
    ]
    if len({(layer.bits, layer.columns, layer.group_size) for layer in matching}) != 1:
        stated = " or ".join(f"{bits} bits in groups of {size}" for bits, size in config.sizes)
        shape = list(parts["qweight"].shape)
        raise FormatError(f"has a 'qweight' of shape {shape}, which contradicts {stated}", name)
    return matching[0]


def _columns(parts: Parts, bits: int) -> int:
    """Return a layer's number of inputs if its weights have some bits."""
    if "g_idx" in parts:
        return parts["g_idx"].shape[0] if len(parts["g_idx"].shape) == 1 else 0
    return parts["qweight"].shape[0] * 32 // bits


def _shapes(parts: Parts, bits: int, columns: int, group_size: int) -> bool:
    """Return whether the shapes of a layer's tensors are those of its sizes."""
    rows, groups = parts["qweight"].shape[1], -(-columns // group_size)
    return (
        parts["qweight"].shape[0] == -(-columns * bits // 32)
        and parts["scales"].shape == (groups, rows)
        and parts["qzeros"].shape == (groups, -(-rows * bits // 32))
    )


def version_of(layers: list[GptqLayer], config: GptqConfig) -> int:
    """Return the version of the format; reads the zero points of all layers.

    Raises:
        FormatError: neither the zero points nor the configuration determine it, or zero points
            contradict a symmetric configuration.
    """
    found = set()
    for layer in layers:
        zeros, middle = layer.stored_zeros(), 2 ** (layer.bits - 1)
        first = int(zeros[0, 0])
        is_symmetric = first in (middle - 1, middle) and bool((zeros == first).all())
        if config.is_symmetric and not is_symmetric:
            raise FormatError(
                f"has zero points other than {middle}, and its quantization is symmetric ('sym')",
                layer.name,
            )
        found.add(1 + first - (middle - 1) if is_symmetric else None)
    determined = found.pop() if len(found) == 1 else None
    version = determined or config.version
    if version is None:
        raise FormatError(
            "it does not say whether its zero points are those of GPTQ's version 1 or 2 "
            "('checkpoint_format')"
        )
    return version


def read(layer: GptqLayer, config: GptqConfig, version: int) -> QuantizedLinear:
    """Return a layer's weight.

    Raises:
        FormatError: its numbers contradict each other.
    """
    words = np.ascontiguousarray(layer.parts["qweight"].read().T)
    return QuantizedLinear(
        codes=unpack_words(words, layer.bits, layer.columns),
        bits=layer.bits,
        scales=np.ascontiguousarray(layer.parts["scales"].floats().T),
        zero_points=np.ascontiguousarray(_zeros(layer, config, version).T.astype(np.int16)),
        column_groups=_column_groups(layer, config),
    )


def _zeros(layer: GptqLayer, config: GptqConfig, version: int) -> NDArray[np.uint8]:
    """Return the zero points, of shape ``[groups, rows]``."""
    zeros = layer.stored_zeros()
    largest = 2**layer.bits - 1
    if version != 1:
        return zeros
    if not (zeros == largest).any():
        return zeros + np.uint8(1)
    if not config.wraps:
        raise FormatError(
            f"has stored zero points of {largest}, which tools read as 0 or as {largest + 1}"
        )
    if 8 % layer.bits:  # the tool shifts each number by itself where words share some
        return (zeros + np.uint8(1)) & np.uint8(largest)
    ones = np.uint32(sum(1 << shift for shift in range(0, 32, layer.bits)))
    words = layer.parts["qzeros"].read().view(np.uint32) + ones
    return unpack_words(words, layer.bits, layer.rows)


def _column_groups(layer: GptqLayer, config: GptqConfig) -> NDArray[np.int32] | None:
    """Return the group of each column; None if they are in order, in groups of equal size.

    Raises:
        FormatError: groups have other sizes than stated, or an order that is not stated.
    """
    in_order = (np.arange(layer.columns) // layer.group_size).astype(np.int32)
    is_even = layer.columns % layer.group_size == 0
    if "g_idx" not in layer.parts:
        return None if is_even else in_order
    groups = layer.parts["g_idx"].read()
    if np.array_equal(groups, in_order):
        return None if is_even else in_order
    if not config.has_order:
        raise FormatError("has its columns ('g_idx') in an order that is not stated ('desc_act')")
    if not np.array_equal(np.sort(groups), in_order):
        raise FormatError(f"has groups ('g_idx') that are not of {layer.group_size} columns")
    return np.array(groups, np.int32)


def _layout(layer: GptqLayer, config: GptqConfig) -> Layout:
    is_ordered = config.has_order and layer.group_size < layer.columns
    return Layout(layer.bits, layer.group_size, ANY_ORDER if is_ordered else "")


def outlines(stored: StoredArrays, fields: Mapping[str, Any]) -> list[Outline]:
    """Return what headers show of the quantized weights, compared with ``quantization_config``.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    layers = layers_of(stored, config_of(fields))
    return [Outline(layer.rows * layer.columns, layer.tensors, layer.bits) for layer in layers]


def weights(stored: StoredArrays, fields: Mapping[str, Any]) -> Iterator[QuantizedWeight]:
    """Yield the quantized weights of a checkpoint; reads zero points only.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    config = config_of(fields)
    layers = layers_of(stored, config)
    version = version_of(layers, config)
    for layer in layers:
        yield QuantizedWeight(
            name=f"{layer.name}.weight",
            shape=(layer.rows, layer.columns),
            tensors=layer.tensors,
            layout=_layout(layer, config),
            read=partial(read, layer, config, version),
        )
