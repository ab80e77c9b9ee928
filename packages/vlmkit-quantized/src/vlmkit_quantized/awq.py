"""AWQ: integers of 4 bits in the layout ``gemm``, packed along the output of a layer.

A layer has ``qweight``, ``qzeros`` and ``scales``. The eight numbers in a word are in an order of
their own. Zero points are stored as they are, so one of 0 is no wrap.

Source: the format of AutoAWQ, whose ``dequantize_gemm`` defines the values.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.layers import (
    Outline,
    Parts,
    check_plain,
    quantized_layers,
    require_matrices,
    require_types,
)
from vlmkit_quantized.packing import Codes
from vlmkit_quantized.stated import Stated, check_group_size, one_of
from vlmkit_quantized.stored import StoredArray, StoredArrays
from vlmkit_quantized.weight import Layout, QuantizedLinear, QuantizedWeight

METHOD = "awq"
BITS = 4
IN_WORD = 32 // BITS
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of eight rows
PACKED = ("qweight", "qzeros", "scales")
KNOWN = (*PACKED, "bias")
PLAIN = "modules_to_not_convert"
UNSUPPORTED = {"rotation": "a rotation of weights and activations", "adapter": "an adapter"}


@dataclass(frozen=True, slots=True)
class AwqConfig:
    """What ``quantization_config`` states about the layers.

    Attributes:
        group_size: columns in a group; -1 is a row.
        has_zeros: whether zero points may be others than 8.
    """

    group_size: int
    has_zeros: bool


def config_of(fields: Mapping[str, Any]) -> AwqConfig:
    """Return what ``quantization_config`` states.

    Raises:
        FormatError: it states something that is not supported.
    """
    stated = Stated(fields)
    stated.refuse(UNSUPPORTED)
    one_of(stated.word("version", "format") or "gemm", ("gemm",), "the layout")
    one_of(stated.integer("bits", "w_bit"), (BITS,), "weights of bits")
    size = stated.integer("group_size", "q_group_size")
    check_group_size(size)
    return AwqConfig(size, stated.flag("zero_point", default=True))


def _layers(
    stored: StoredArrays, config: AwqConfig, fields: Mapping[str, Any]
) -> list[tuple[str, Parts]]:
    """Return the quantized layers, by headers.

    Raises:
        FormatError: tensors are absent, unknown, or contradict the configuration.
    """
    found = list(quantized_layers(stored, PACKED, PACKED, KNOWN))
    for name, parts in found:
        require_types(name, parts, dict.fromkeys(("qweight", "qzeros"), ("I32", "U32")))
        require_matrices(name, parts, PACKED)
        columns, words = parts["qweight"].shape
        size = columns if config.group_size == -1 else config.group_size
        groups = columns // size
        is_whole = columns % size == 0
        zeros, scales = parts["qzeros"].shape, parts["scales"].shape
        if not is_whole or zeros != (groups, words) or scales != (groups, words * IN_WORD):
            raise FormatError(
                f"has a 'qweight' of shape [{columns}, {words}] and scales of shape "
                f"{list(scales)}, which contradict groups of {config.group_size}",
                name,
            )
    check_plain(fields.get(PLAIN), PLAIN, stored.layers, {name for name, _ in found})
    return found


def _numbers(array: StoredArray) -> Codes:
    """Return the numbers of packed words, transposed: ``[rows, ...]``."""
    words = np.ascontiguousarray(array.read().T).view(np.uint32)
    numbers = np.empty((len(words) * IN_WORD, words.shape[1]), np.uint8)
    for row, place in enumerate(ORDER):
        numbers[row::IN_WORD] = words >> (BITS * place) & (2**BITS - 1)
    return numbers


def read(parts: Parts, config: AwqConfig) -> QuantizedLinear:
    """Return a layer's weight.

    Raises:
        FormatError: its numbers contradict each other.
    """
    zeros = _numbers(parts["qzeros"])
    if not config.has_zeros and (zeros != 2 ** (BITS - 1)).any():
        raise FormatError("has zero points, and quantization_config has none ('zero_point')")
    return QuantizedLinear(
        codes=_numbers(parts["qweight"]),
        bits=BITS,
        scales=np.ascontiguousarray(parts["scales"].floats().T),
        zero_points=zeros.astype(np.int16),
    )


def outlines(stored: StoredArrays, fields: Mapping[str, Any]) -> list[Outline]:
    """Return what headers show of the quantized weights, compared with ``quantization_config``.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    return [
        Outline(math.prod(parts["qweight"].shape) * IN_WORD, _tensors(name), BITS)
        for name, parts in _layers(stored, config_of(fields), fields)
    ]


def _tensors(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{part}" for part in PACKED)


def weights(stored: StoredArrays, fields: Mapping[str, Any]) -> Iterator[QuantizedWeight]:
    """Yield the quantized weights of a checkpoint; reads no weight.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    config = config_of(fields)
    for name, parts in _layers(stored, config, fields):
        columns, words = parts["qweight"].shape
        yield QuantizedWeight(
            name=f"{name}.weight",
            shape=(words * IN_WORD, columns),
            tensors=_tensors(name),
            layout=Layout(BITS, columns if config.group_size == -1 else config.group_size),
            read=partial(read, parts, config),
        )
