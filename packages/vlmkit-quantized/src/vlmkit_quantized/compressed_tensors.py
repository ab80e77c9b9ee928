"""compressed-tensors: integers and floats of few bits, packed or not, in one scheme or several.

A layer has ``weight_packed``, or ``weight`` in integers or 8-bit floats, and ``weight_scale``.
Asymmetric ones have ``weight_zero_point``, and packed integers ``weight_shape``. ``config_groups``
describes schemes; the tensors show which of them a layer has. Sparse weights and transforms are
rejected. Nothing here quantizes activations.

Source: the package compressed-tensors, whose ``dequantize`` defines the values in float32.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized import float_codes
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.layers import (
    Outline,
    Parts,
    check_plain,
    quantized_layers,
    require_matrices,
    require_types,
)
from vlmkit_quantized.packing import Codes, halves, unpack_words
from vlmkit_quantized.stated import MAX_INTEGER, Stated, one_of
from vlmkit_quantized.stored import FLOATS, Floats, StoredArrays
from vlmkit_quantized.weight import ANY_ORDER, FLOAT_CODES, Layout, QuantizedLinear, QuantizedWeight

METHOD = "compressed-tensors"
PLAIN = "ignore"
INTEGERS = ("pack-quantized", "int-quantized", "naive-quantized")
FLOATS_OF_8 = ("float-quantized", "naive-quantized", "mxfp8-quantized")
FLOATS_OF_4 = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
FORMATS = tuple(dict.fromkeys((*INTEGERS, *FLOATS_OF_8, *FLOATS_OF_4)))
PACKED_BITS = range(2, 9)
UNSUPPORTED = {
    "transform_config": "transforms of weights and activations",
    "moe_sparsity_config": "pruned experts",
}
ACTIVATIONS = ("input_activations", "output_activations")
STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
OF_GROUPS = ("group", "tensor_group")
PARTS = frozenset(
    f"weight_{part}" for part in ("packed", "scale", "zero_point", "shape", "g_idx", "global_scale")
)
KNOWN = PARTS | {"weight", "bias"}
MATRIX_AXES = 2

# The type of a layer's weight, by the format of its scheme and whether it has integers.
_TYPES = {
    **dict.fromkeys(INTEGERS, "I8"),
    "pack-quantized": "I32",
    **dict.fromkeys(FLOATS_OF_4, "U8"),
}
_BITS = {"I32": 32, "U8": 8, "I8": 8, "F8_E4M3": 8}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some layers are quantized.

    Attributes:
        stored_as: the format of the tensors.
        bits: of a weight.
        is_float: whether codes stand for floats.
        is_symmetric: whether there are no zero points.
        strategy: what shares a scale.
        group_size: columns that share a scale; 0 without groups.
        block: rows and columns that share a scale; zeros without blocks.
    """

    stored_as: str
    bits: int
    is_float: bool
    is_symmetric: bool
    strategy: str
    group_size: int
    block: tuple[int, int]

    @property
    def dtype(self) -> str:
        """The type of the weights in the files."""
        if self.is_float and self.stored_as not in FLOATS_OF_4:
            return "F8_E4M3"
        return _TYPES[self.stored_as]

    @property
    def part(self) -> str:
        """The last part of the name of the weights in the files."""
        return "weight_packed" if "pack" in self.stored_as else "weight"

    @property
    def scale_dtypes(self) -> tuple[str, ...]:
        """The types that its scales may have."""
        if self.stored_as == "nvfp4-pack-quantized":
            return ("F8_E4M3",)
        return ("U8",) if self.stored_as.startswith("mx") else tuple(FLOATS)

    def num_scales(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of scales along both axes of a weight."""
        if self.strategy == "block":
            return -(-rows // self.block[0]), -(-columns // self.block[1])
        if self.strategy in OF_GROUPS:
            return rows, columns // self.group_size
        return (rows if self.strategy == "channel" else 1), 1


def quantizes_more(fields: Mapping[str, Any]) -> bool:
    """Return whether a configuration quantizes activations, or keys and values."""
    groups = fields.get("config_groups")
    listed = groups.values() if isinstance(groups, Mapping) else ()
    has_activations = any(
        isinstance(group, Mapping) and any(map(group.get, ACTIVATIONS)) for group in listed
    )
    return has_activations or bool(fields.get("kv_cache_scheme"))


def is_sparse(fields: Mapping[str, Any]) -> bool:
    """Return whether weights are sparse; earlier versions of the tool state ``dense`` ones, too."""
    stated = fields.get("sparsity_config")
    return bool(stated) and not (isinstance(stated, Mapping) and stated.get("format") == "dense")


def schemes_of(fields: Mapping[str, Any]) -> frozenset[Scheme]:
    """Return the schemes of ``quantization_config``.

    Raises:
        FormatError: it has none, or one is not supported.
    """
    stated = Stated(fields)
    stated.refuse(UNSUPPORTED)
    if is_sparse(fields):
        raise FormatError("its quantization has sparse weights ('sparsity_config'), not supported")
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise FormatError(
            "its quantization_config has no 'config_groups', which say how it is quantized"
        )
    return frozenset(_scheme(name, group, stated.get("format")) for name, group in groups.items())


def _scheme(name: str, group: Any, stored_as: Any) -> Scheme:
    args = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(args, Mapping) or not isinstance(group.get("targets"), list):
        raise FormatError(f"its config group {name!r} quantizes no weights, not supported")
    stored_as = group.get("format") or stored_as
    if stored_as not in FORMATS:
        raise FormatError(
            f"its config group {name!r} stores weights as {stored_as!r}, not supported"
        )
    stated = Stated(args)
    bits, kind = stated.integer("num_bits"), stated.word("type") or "int"
    one_of(kind, ("int", "float"), "weights of type")
    is_float, is_symmetric = kind == "float", stated.flag("symmetric", default=True)
    _check_bits(name, stored_as, bits, is_float=is_float, is_symmetric=is_symmetric)
    if stated.get("dynamic"):
        raise FormatError(f"its config group {name!r} has weights with dynamic scales")
    size = stated.integer("group_size", default=0)
    strategy = stated.word("strategy") or ("group" if size > 0 else "channel" if size else "tensor")
    one_of(strategy, STRATEGIES, "scales by")
    if strategy in OF_GROUPS and size <= 0:
        raise FormatError(f"its config group {name!r} needs a positive integer in 'group_size'")
    is_grouped = strategy in OF_GROUPS
    return Scheme(
        stored_as=stored_as,
        bits=bits,
        is_float=is_float,
        is_symmetric=is_symmetric,
        strategy="group" if is_grouped else strategy,
        group_size=size if is_grouped else 0,
        block=_block(name, stated) if strategy == "block" else (0, 0),
    )


def _check_bits(
    name: str, stored_as: str, bits: int, *, is_float: bool, is_symmetric: bool
) -> None:
    is_of_4 = stored_as in FLOATS_OF_4
    allowed = FLOATS_OF_4 + FLOATS_OF_8 if is_float else INTEGERS
    wanted = PACKED_BITS if stored_as == "pack-quantized" else (4,) if is_of_4 else (8,)
    if stored_as not in allowed or bits not in wanted or (is_float and not is_symmetric):
        what = f"{bits}-bit {'floats' if is_float else 'integers'}"
        kind = what if is_symmetric else f"asymmetric {what}"
        raise FormatError(
            f"its config group {name!r} stores {kind} as {stored_as!r}, not supported"
        )


def _block(name: str, stated: Stated) -> tuple[int, int]:
    sizes = stated.get("block_structure")
    is_pair = isinstance(sizes, list) and len(sizes) == MATRIX_AXES
    if not is_pair or not all(type(size) is int and 0 < size <= MAX_INTEGER for size in sizes):
        raise FormatError(f"its config group {name!r} needs two sizes in 'block_structure'")
    return sizes[0], sizes[1]


def outlines(stored: StoredArrays, fields: Mapping[str, Any]) -> list[Outline]:
    """Return what headers show of the quantized weights, compared with ``quantization_config``.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    schemes = schemes_of(fields)
    found = []
    for name, parts in _layers(stored, fields):
        matching = _matching(name, parts, schemes, None)
        fewest_bits = min(scheme.bits for scheme in matching)
        num_bits = math.prod(parts[matching[0].part].shape) * _BITS[matching[0].dtype]
        found.append(Outline(num_bits // fewest_bits, _tensors(name, parts), fewest_bits))
    return found


def weights(stored: StoredArrays, fields: Mapping[str, Any]) -> Iterator[QuantizedWeight]:
    """Yield the quantized weights of a checkpoint; reads the shapes of packed weights only.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    schemes = schemes_of(fields)
    for name, parts in _layers(stored, fields):
        shape = _shape(name, parts)
        matching = _matching(name, parts, schemes, shape)
        if len(matching) > 1:
            raise FormatError("fits several of its config groups", name)
        (scheme,) = matching
        yield QuantizedWeight(
            name=f"{name}.weight",
            shape=shape,
            tensors=_tensors(name, parts),
            layout=_layout(parts, scheme, shape[1]),
            read=partial(_read, parts, scheme, shape),
        )


def _layout(parts: Parts, scheme: Scheme, columns: int) -> Layout:
    width = scheme.group_size or scheme.block[1] or columns
    is_ordered = "weight_g_idx" in parts and width < columns
    beyond = FLOAT_CODES if scheme.is_float else ANY_ORDER if is_ordered else ""
    return Layout(scheme.bits, width, beyond)


def _tensors(name: str, parts: Parts) -> tuple[str, ...]:
    return tuple(f"{name}.{part}" for part in parts if part != "bias")


def _layers(stored: StoredArrays, fields: Mapping[str, Any]) -> list[tuple[str, Parts]]:
    """Return the quantized layers, by headers.

    Raises:
        FormatError: tensors are absent or unknown, or a layer is listed as plain.
    """
    for name, array in stored.items():
        layer, _, part = name.rpartition(".")
        is_low = array.dtype == "I8" or array.dtype.startswith("F8")
        if part == "weight" and is_low and "weight_scale" not in stored.layers[layer]:
            raise FormatError("has no 'weight_scale'", layer)
    found = list(quantized_layers(stored, PARTS, ("weight_scale",), KNOWN))
    check_plain(fields.get(PLAIN), PLAIN, stored.layers, {name for name, _ in found})
    return found


def _shape(name: str, parts: Parts) -> tuple[int, int]:
    """Return the shape of a layer's plain weight.

    Raises:
        FormatError: it is not stated, or contradicts the packed weight.
    """
    packed = parts.get("weight_packed")
    if packed is None:
        rows, columns = parts["weight"].shape
        return rows, columns
    if packed.dtype == "U8":
        return packed.shape[0], 2 * packed.shape[1]
    if (stated := parts.get("weight_shape")) is None:
        raise FormatError("has no 'weight_shape'", name)
    if stated.dtype not in ("I32", "I64") or stated.shape != (MATRIX_AXES,):
        raise FormatError("has a 'weight_shape' that is not two integers", name)
    rows, columns = map(int, stated.read())
    if rows != packed.shape[0] or columns < 1:
        raise FormatError(
            f"has a 'weight_shape' of [{rows}, {columns}] and {packed.shape[0]} packed rows", name
        )
    return rows, columns


def _matching(
    name: str, parts: Parts, schemes: frozenset[Scheme], shape: tuple[int, int] | None
) -> list[Scheme]:
    """Return the schemes that a layer's tensors may have; at least one.

    Args:
        name: the layer.
        parts: its tensors.
        schemes: those of the configuration.
        shape: of its plain weight; None compares only what headers show.

    Raises:
        FormatError: there is none.
    """
    part = next((part for part in ("weight_packed", "weight") if part in parts), None)
    if part is None or {"weight_packed", "weight"} <= parts.keys():
        raise FormatError("has scales and no weight, or two weights", name)
    require_matrices(name, parts, (part,))
    zeros = parts.get("weight_zero_point")
    matching = [
        scheme
        for scheme in schemes
        if (scheme.part, scheme.dtype) == (part, parts[part].dtype)
        and parts["weight_scale"].dtype in scheme.scale_dtypes
        and (scheme.is_symmetric or zeros is not None)
        and (shape is None or _has_sizes(parts, scheme, shape))
    ]
    if not matching:
        scales = parts["weight_scale"]
        raise FormatError(
            f"has {parts[part].dtype} weights of shape {list(parts[part].shape)} and "
            f"{scales.dtype} scales of shape {list(scales.shape)}, which contradict its config "
            "groups",
            name,
        )
    types = {"weight_zero_point": ("I8", "I32"), "weight_g_idx": ("I32", "I64")}
    require_types(name, parts, types)
    return matching


def _has_sizes(parts: Parts, scheme: Scheme, shape: tuple[int, int]) -> bool:
    """Return whether tensors have the shapes that a scheme needs."""
    rows, columns = shape
    if scheme.group_size and columns % scheme.group_size:
        return False
    wanted = scheme.num_scales(rows, columns)
    scales = parts["weight_scale"].shape
    is_one = scheme.strategy == "tensor" and scales in ((), (1,))
    if scales != wanted and not is_one:
        return False
    if scheme.stored_as != "pack-quantized":
        zeros = parts.get("weight_zero_point")
        return zeros is None or zeros.shape == scales
    width = -(-columns * scheme.bits // 32)
    zeros = parts.get("weight_zero_point")
    packed_zeros = (-(-rows * scheme.bits // 32), wanted[1])
    return parts["weight_packed"].shape == (rows, width) and (
        zeros is None or zeros.shape == (scales if zeros.dtype == "I8" else packed_zeros)
    )


def _read(parts: Parts, scheme: Scheme, shape: tuple[int, int]) -> QuantizedLinear:
    """Return a layer's weight.

    Raises:
        FormatError: its numbers contradict each other.
    """
    rows, columns = shape
    scales = _scales(parts, scheme).reshape(scheme.num_scales(rows, columns))
    if scheme.strategy == "block":
        scales = scales[np.arange(rows) // scheme.block[0]]
    return QuantizedLinear(
        codes=_codes(parts, scheme, columns),
        bits=scheme.bits,
        scales=np.broadcast_to(scales, (rows, scales.shape[1])),
        zero_points=None if scheme.is_float else _zeros(parts, scheme, shape),
        levels=_levels(scheme),
        column_groups=_column_groups(parts, scheme, columns),
    )


def _codes(parts: Parts, scheme: Scheme, columns: int) -> Codes:
    numbers = parts[scheme.part].read()
    if scheme.stored_as == "pack-quantized":
        return unpack_words(numbers, scheme.bits, columns)
    if scheme.stored_as in FLOATS_OF_4:
        return halves(numbers, low_first=True)
    return np.array(numbers) if scheme.is_float else numbers.view(np.uint8) ^ np.uint8(128)


def _levels(scheme: Scheme) -> Floats | None:
    if not scheme.is_float:
        return None
    return float_codes.E2M1 if scheme.stored_as in FLOATS_OF_4 else float_codes.E4M3


def _scales(parts: Parts, scheme: Scheme) -> Floats:
    """Return the scales as float32, in the shape of the files.

    Raises:
        FormatError: the scale of all scales is zero or not finite.
    """
    stored = parts["weight_scale"]
    if scheme.stored_as.startswith("mx"):
        return float_codes.decoded(stored.read(), float_codes.E8M0)
    if scheme.stored_as != "nvfp4-pack-quantized":
        return stored.floats()
    whole = parts.get("weight_global_scale")
    if whole is None or whole.shape not in ((), (1,)):
        raise FormatError("has no 'weight_global_scale', or several")
    divisor = whole.floats().reshape(-1)[0]
    if not np.isfinite(divisor) or divisor == 0:
        raise FormatError("has a 'weight_global_scale' that is zero or not finite")
    scales = float_codes.decoded(stored.read(), float_codes.E4M3)
    scales /= divisor
    return scales


def _zeros(parts: Parts, scheme: Scheme, shape: tuple[int, int]) -> NDArray[np.int16]:
    """Return the zero points as codes.

    Raises:
        FormatError: a symmetric layer has other ones than the middle.
    """
    middle = 2 ** (scheme.bits - 1)
    stored = parts.get("weight_zero_point")
    if stored is None:
        return np.full((1, 1), middle, np.int16)
    rows = shape[0]
    if stored.dtype == "I8":
        zeros = stored.read().astype(np.int16).reshape(scheme.num_scales(*shape)) + np.int16(middle)
    else:
        words = np.ascontiguousarray(stored.read().T)
        zeros = np.ascontiguousarray(unpack_words(words, scheme.bits, rows).T).astype(np.int16)
    if scheme.is_symmetric and (zeros != middle).any():
        raise FormatError("has zero points, and its config group is symmetric")
    if scheme.strategy == "block":
        zeros = zeros[np.arange(rows) // scheme.block[0]]
    return np.broadcast_to(zeros, (rows, zeros.shape[1]))


def _column_groups(parts: Parts, scheme: Scheme, columns: int) -> NDArray[np.int32] | None:
    """Return the group of each column; None if they are in order, in groups of equal size.

    Raises:
        FormatError: groups have other sizes than stated.
    """
    width = scheme.group_size or scheme.block[1]
    if not width:
        return None
    in_order = (np.arange(columns) // width).astype(np.int32)
    stored = parts.get("weight_g_idx")
    groups = None if stored is None else stored.read()
    if groups is None or np.array_equal(groups, in_order):
        return None if columns % width == 0 else in_order
    if not scheme.group_size or not np.array_equal(np.sort(groups), in_order):
        raise FormatError(f"has groups ('weight_g_idx') that are not of {width} columns")
    return np.array(groups, np.int32)
