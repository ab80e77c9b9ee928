"""bitsandbytes: codes of 4 bits that stand for floats (NF4, FP4), integers of 8 bits (LLM.int8).

A layer of 4 bits has ``weight``, two codes in a byte; ``weight.absmax``, the scale of each block;
and ``weight.quant_state.bitsandbytes__nf4`` or ``__fp4``, JSON in bytes. A block is a number of
consecutive weights, across rows if need be. With ``weight.nested_absmax``, scales are themselves
quantized. A layer of 8 bits has integers, and ``SCB``, the largest absolute value of each row.

LLM.int8 also quantizes activations, by what else is in a step. That is not done here.

Source: bitsandbytes, whose ``dequantize_4bit`` and ``int8_vectorwise_dequant`` define the values.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.layers import Outline, Parts, check_plain, require_types
from vlmkit_quantized.packing import halves
from vlmkit_quantized.stated import MAX_INTEGER, Stated
from vlmkit_quantized.stored import Floats, StoredArray, StoredArrays
from vlmkit_quantized.weight import FLOAT_CODES, Layout, QuantizedLinear, QuantizedWeight

METHOD = "bitsandbytes"
PLAIN = "llm_int8_skip_modules"
STATE = "quant_state.bitsandbytes__"
MAX_STATE_BYTES = 4096
NUM_NESTED_LEVELS = 256
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BITS = 8
ROW_FORMAT = 0
LARGEST = np.float32(7.874015718698502e-3)  # 1 / 127, as the tool rounds it

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
LEVELS = {
    "nf4": np.array(NF4, np.float32),
    "fp4": np.array((*_FP4, *(-level for level in _FP4)), np.float32),
}
TOLERANCE = 1e-3  # of stored levels, which the tool ignores

OF_FOUR = frozenset({"absmax", "quant_map", "nested_absmax", "nested_quant_map"})
OF_EIGHT = frozenset({"SCB", "weight_format"})
OTHERS = frozenset({"weight", "bias"})
FLOATS = frozenset({"F32"})
BYTES = frozenset({"U8"})
NUMBER_BYTES = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4}
"""Types in which a layer's bytes may be stored."""


Size = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a layer of 4 bits.

    Attributes:
        quant_type: the levels.
        blocksize: weights in a block.
        dtype: of the weight before.
        shape: of the weight.
        nested_blocksize: scales in a block of scales.
        nested_dtype: of scales.
        nested_offset: what is added to each scale.
    """

    quant_type: Literal["nf4", "fp4"]
    blocksize: Size
    dtype: Literal["float32", "float16", "bfloat16"]
    shape: tuple[Size, Size]
    nested_blocksize: Size = 0
    nested_dtype: Literal["", "float32"] = ""
    nested_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of 4 bits in the files.

    Attributes:
        name: its name.
        weight: its codes.
        parts: its other tensors by the last part of their names.
        quant_type: its levels, as the name of its state has them.
        state: its state.
    """

    name: str
    weight: StoredArray
    parts: Parts
    quant_type: str
    state: StoredArray

    @property
    def num_bytes(self) -> int:
        """Bytes of its codes."""
        return math.prod(self.weight.shape) * NUMBER_BYTES[self.weight.dtype]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that its weight consists of."""
        names = (*self.parts, f"{STATE}{self.quant_type}")
        return (f"{self.name}.weight", *(f"{self.name}.weight.{name}" for name in names))


def outlines(stored: StoredArrays, fields: Mapping[str, Any]) -> list[Outline]:
    """Return what headers show of the quantized weights, compared with ``quantization_config``.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    four, eight = _layers(stored, fields)
    of_four = [Outline(2 * layer.num_bytes, layer.tensors, 4) for layer in four]
    of_eight = [
        Outline(math.prod(parts["weight"].shape), _tensors(name, parts), 8)
        for name, parts in eight.items()
    ]
    return of_four + of_eight


def weights(stored: StoredArrays, fields: Mapping[str, Any]) -> Iterator[QuantizedWeight]:
    """Yield the quantized weights of a checkpoint; reads the states of layers only.

    Raises:
        FormatError: the checkpoint is not supported.
    """
    four, eight = _layers(stored, fields)
    for layer in four:
        state = _state(layer)
        _compare(layer, state, Stated(fields))
        yield QuantizedWeight(
            name=f"{layer.name}.weight",
            shape=state.shape,
            tensors=layer.tensors,
            layout=Layout(4, state.blocksize, FLOAT_CODES),
            read=partial(_read_four, layer, state),
        )
    for name, parts in eight.items():
        rows, columns = parts["weight"].shape
        yield QuantizedWeight(
            name=f"{name}.weight",
            shape=(rows, columns),
            tensors=_tensors(name, parts),
            layout=Layout(BITS, columns, "a scale of all weights"),
            read=partial(_read_eight, parts),
        )


def _layers(
    stored: StoredArrays, fields: Mapping[str, Any]
) -> tuple[list[Layer], dict[str, Parts]]:
    """Return the layers of 4 and of 8 bits, by headers.

    Raises:
        FormatError: there is none, tensors are absent or unknown, or the configuration says
            otherwise.
    """
    four, eight = list(_of_four(stored)), dict(_of_eight(stored))
    for width, layers in ((4, four), (8, eight)):
        is_stated = Stated(fields).flag(
            f"load_in_{width}bit", f"_load_in_{width}bit", default=False
        )
        if is_stated and not layers:
            raise FormatError(f"it has no layers of {width} bits, which quantization_config states")
        if layers and not is_stated:
            raise FormatError(f"it has layers of {width} bits, not stated in quantization_config")
    names = {layer.name for layer in four} | eight.keys()
    if not names:
        raise FormatError("its quantization_config describes quantized layers, and it has none")
    check_plain(fields.get(PLAIN), PLAIN, stored.layers, names)
    return four, eight


def _of_four(stored: StoredArrays) -> Iterator[Layer]:
    states = {}
    for name, array in stored.items():
        layer, found, quant_type = name.partition(f".weight.{STATE}")
        if found:
            states[layer] = (quant_type, array)
    for name, parts in stored.layers.items():
        layer, found, _ = name.rpartition(".weight")
        if found and not parts.keys().isdisjoint(OF_FOUR) and layer not in states:
            raise FormatError("has scales and no 'quant_state'", layer)
    for name, (quant_type, state) in states.items():
        parts = stored.layers.get(f"{name}.weight", {})
        weight = stored.get(f"{name}.weight")
        if weight is None or "absmax" not in parts:
            raise FormatError(f"has no {'weight' if weight is None else 'weight.absmax'!r}", name)
        if unknown := parts.keys() - OF_FOUR:
            raise FormatError(
                f"has a tensor {f'weight.{min(unknown)}'!r}, which the format does not define", name
            )
        if "embed" in name.rpartition(".")[2]:
            raise FormatError("is a quantized embedding, which is not supported", name)
        if quant_type not in LEVELS:
            raise FormatError(f"has levels of {quant_type!r}, which are not supported", name)
        require_types(name, {"weight": weight}, {"weight": NUMBER_BYTES})
        scales = BYTES if "nested_absmax" in parts else FLOATS
        require_types(name, parts, dict.fromkeys(OF_FOUR, FLOATS) | {"absmax": scales})
        yield Layer(name, weight, parts, quant_type, state)


def _of_eight(stored: StoredArrays) -> Iterator[tuple[str, Parts]]:
    for name, parts in stored.layers.items():
        weight = parts.get("weight")
        is_packed = weight is not None and weight.dtype == "I8"
        if parts.keys().isdisjoint(OF_EIGHT) and not is_packed:
            continue
        if absent := next((part for part in ("weight", "SCB") if part not in parts), None):
            raise FormatError(f"has no {absent!r}", name)
        if unknown := parts.keys() - OF_EIGHT - OTHERS:
            raise FormatError(
                f"has a tensor {min(unknown)!r}, which the format does not define", name
            )
        require_types(name, parts, {"weight": ("I8",), "SCB": FLOATS, "weight_format": BYTES})
        shape = parts["weight"].shape
        if len(shape) != 2 or not all(shape) or math.prod(parts["SCB"].shape) != shape[0]:
            raise FormatError(
                f"has weights of shape {list(shape)} and scales of shape "
                f"{list(parts['SCB'].shape)}",
                name,
            )
        yield name, parts


def _tensors(name: str, parts: Parts) -> tuple[str, ...]:
    """Return the names of the tensors of a layer of 8 bits."""
    return tuple(f"{name}.{part}" for part in parts if part != "bias")


def _state(layer: Layer) -> State:
    """Return the state of a layer.

    Raises:
        FormatError: it is not one that the tool writes.
    """
    if layer.state.dtype != "U8" or math.prod(layer.state.shape) > MAX_STATE_BYTES:
        raise FormatError("has a 'quant_state' that is too long or of another type", layer.name)
    try:
        return msgspec.json.decode(layer.state.read().tobytes(), type=State)
    except msgspec.DecodeError as error:
        raise FormatError("has a 'quant_state' that is not supported", layer.name) from error


def _compare(layer: Layer, state: State, stated: Stated) -> None:
    """Compare a layer's tensors with its state and with ``quantization_config``.

    Raises:
        FormatError: they contradict each other.
    """
    num, name = math.prod(state.shape), layer.name
    if state.quant_type != layer.quant_type:
        raise FormatError(f"has levels of {state.quant_type!r} and of {layer.quant_type!r}", name)
    levels = stated.word("bnb_4bit_quant_type")
    if levels and levels != state.quant_type:
        raise FormatError(
            f"has levels of {state.quant_type!r}, and quantization_config states {levels!r}", name
        )
    if min(state.shape) < 1 or state.blocksize not in BLOCKS:
        raise FormatError("has a 'quant_state' with an unknown size of blocks, or no weights", name)
    num_blocks = -(-num // state.blocksize)
    is_nested = "nested_absmax" in layer.parts
    num_scales = math.prod(layer.parts["absmax"].shape)
    if layer.num_bytes != -(-num // 2) or num_scales != num_blocks:
        raise FormatError(
            f"has {layer.num_bytes} bytes and {num_scales} scales, which contradict shape "
            f"{list(state.shape)} in blocks of {state.blocksize}",
            name,
        )
    if stated.flag("bnb_4bit_use_double_quant", default=is_nested) != is_nested or is_nested != (
        state.nested_blocksize > 0
    ):
        raise FormatError(
            "contradicts the configuration about whether scales are quantized themselves "
            "('bnb_4bit_use_double_quant')",
            name,
        )
    if is_nested:
        _compare_nested(layer, state, num_blocks)


def _compare_nested(layer: Layer, state: State, num_blocks: int) -> None:
    """Compare the tensors of quantized scales.

    Raises:
        FormatError: they contradict each other.
    """
    levels, scales = (layer.parts.get(f"nested_{part}") for part in ("quant_map", "absmax"))
    num = -(-num_blocks // state.nested_blocksize)
    if (
        levels is None
        or scales is None
        or math.prod(levels.shape) != NUM_NESTED_LEVELS
        or math.prod(scales.shape) != num
    ):
        raise FormatError("has quantized scales of another size than it states", layer.name)
    if not math.isfinite(state.nested_offset):
        raise FormatError("has scales that are not finite", layer.name)


def _read_four(layer: Layer, state: State) -> QuantizedLinear:
    """Return the weight of a layer of 4 bits.

    Raises:
        FormatError: its numbers contradict each other.
    """
    rows, columns = state.shape
    codes = halves(layer.weight.read().reshape(-1).view(np.uint8), low_first=False)
    levels = LEVELS[state.quant_type]
    stored = layer.parts.get("quant_map")
    if stored is not None and not _is_like(stored.floats(), levels):
        raise FormatError(f"has other levels than those of {state.quant_type!r}")
    blocks = _scales(layer, state)
    group_size = math.gcd(columns, state.blocksize)
    firsts = np.arange(0, rows * columns, group_size)
    return QuantizedLinear(
        codes=codes[: rows * columns].reshape(rows, columns),
        bits=4,
        scales=blocks[firsts // state.blocksize].reshape(rows, -1),
        levels=levels,
    )


def _is_like(found: Floats, levels: Floats) -> bool:
    return found.shape == levels.shape and bool(np.allclose(found, levels, atol=TOLERANCE, rtol=0))


def _scales(layer: Layer, state: State) -> Floats:
    """Return the scale of each block."""
    absmax = layer.parts["absmax"]
    if absmax.dtype == "F32":
        return absmax.floats().reshape(-1)
    levels = layer.parts["nested_quant_map"].floats().reshape(-1)
    of_blocks = layer.parts["nested_absmax"].floats().reshape(-1)
    codes = absmax.read().reshape(-1)
    scales: Floats = levels[codes] * of_blocks[np.arange(len(codes)) // state.nested_blocksize]
    scales += np.float32(state.nested_offset)
    return scales


def _read_eight(parts: Parts) -> QuantizedLinear:
    """Return the weight of a layer of 8 bits.

    Raises:
        FormatError: its numbers are in a layout of kernels, or contradict each other.
    """
    stated = parts.get("weight_format")
    if stated is not None and not (stated.read() == ROW_FORMAT).all():
        raise FormatError("has weights in another layout than rows ('weight_format')")
    integers = parts["weight"].read()
    return QuantizedLinear(
        codes=integers.view(np.uint8) ^ np.uint8(128),
        bits=BITS,
        scales=parts["SCB"].floats().reshape(-1, 1),
        zero_points=np.full((1, 1), 2 ** (BITS - 1), np.int16),
        global_scale=LARGEST,
    )
