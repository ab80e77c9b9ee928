"""The block formats of GGUF: numbers of few bits with scales, in blocks of 32 or 256.

A row of a matrix is a sequence of blocks. Sources: ``ggml-common.h`` and ``ggml-quants.c`` of
llama.cpp define the layouts, and the package ``gguf`` computes the same values in float32. Formats
with codebooks of vectors (IQ1 to IQ3) and ternary ones are not read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.packing import Codes, halves
from vlmkit_quantized.stored import Floats
from vlmkit_quantized.weight import FLOAT_CODES, Layout, QuantizedLinear

Octets: TypeAlias = NDArray[np.uint8]
"""Blocks, of shape ``[num_blocks, num_bytes]``."""

Unpacked: TypeAlias = tuple[Codes, Floats, Floats | None]
"""The codes ``[num_blocks, num_weights]``, and scales and offsets ``[num_blocks, groups]``."""

NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks.

    Attributes:
        num_weights: in a block.
        num_bytes: of a block.
        bits: of a code.
        unpack: returns codes, scales and offsets of blocks.
        zero_point: the code of zero, before offsets are added.
        group_size: weights that share a scale.
        has_offsets: whether groups have offsets.
        levels: the value of each code, if codes stand for floats.
    """

    num_weights: int
    num_bytes: int
    bits: int
    unpack: Callable[[Octets], Unpacked]
    zero_point: int = 0
    levels: tuple[int, ...] | None = None
    group_size: int = 32
    has_offsets: bool = False

    @property
    def layout(self) -> Layout:
        """The form of a weight of such blocks."""
        beyond = FLOAT_CODES if self.levels else "offsets of groups" if self.has_offsets else ""
        return Layout(self.bits, self.group_size, beyond)

    def linear(self, octets: NDArray[np.uint8]) -> QuantizedLinear:
        """Return the weight that the blocks of some rows hold.

        Args:
            octets: of shape ``[rows, row_bytes]``.

        Raises:
            FormatError: a scale or a value is not finite.
        """
        rows = len(octets)
        with np.errstate(invalid="ignore", over="ignore"):  # rejected below
            codes, scales, offsets = self.unpack(octets.reshape(-1, self.num_bytes))
            largest = scales * np.float32(max(map(abs, self.levels or (1,))))
        if not np.isfinite(largest).all():
            raise FormatError("has scales that are not finite, or whose values are not")
        is_float = self.levels is not None
        return QuantizedLinear(
            codes.reshape(rows, -1),
            self.bits,
            scales.reshape(rows, -1),
            None if is_float else np.full((1, 1), self.zero_point, np.int16),
            np.array(self.levels, np.float32) if is_float else None,
            offsets=None if offsets is None else offsets.reshape(rows, -1),
        )


def _half(octets: Octets, begin: int) -> Floats:
    """Return the 16-bit float at an offset of each block, of shape ``[num_blocks, 1]``."""
    return np.ascontiguousarray(octets[:, begin : begin + 2]).view("<f2").astype(np.float32)


def _nibbles(octets: Octets, width: int) -> Codes:
    """Return numbers of 4 bits: the low ones of ``width`` bytes, then the high ones of the same."""
    lots = octets.reshape(len(octets), -1, width)
    return np.stack([lots & 15, lots >> 4], axis=2).reshape(len(octets), -1)


def _pairs(octets: Octets) -> Codes:
    """Return numbers of 2 bits: of 32 bytes the lowest ones, then the next ones, and so on."""
    lots = octets.reshape(len(octets), -1, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return ((lots >> shifts) & np.uint8(3)).reshape(len(octets), -1)


def _fifth_bits(octets: Octets) -> Codes:
    """Return the bits of 4 bytes, the lowest first, as the fifth bits of 32 numbers."""
    return np.unpackbits(octets, axis=1, bitorder="little") << np.uint8(4)


def _bits_by_group(octets: Octets) -> Codes:
    """Return the bits of 32 bytes: the lowest bit of each byte, then the next ones, and so on."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    return ((octets[:, None, :] >> shifts) & np.uint8(1)).reshape(len(octets), -1)


def _q4_0(octets: Octets) -> Unpacked:
    return _nibbles(octets[:, 2:], 16), _half(octets, 0), None


def _q4_1(octets: Octets) -> Unpacked:
    return _nibbles(octets[:, 4:], 16), _half(octets, 0), _half(octets, 2)


def _q5_0(octets: Octets) -> Unpacked:
    codes = _nibbles(octets[:, 6:], 16) | _fifth_bits(octets[:, 2:6])
    return codes, _half(octets, 0), None


def _q5_1(octets: Octets) -> Unpacked:
    codes = _nibbles(octets[:, 8:], 16) | _fifth_bits(octets[:, 4:8])
    return codes, _half(octets, 0), _half(octets, 2)


def _q8_0(octets: Octets) -> Unpacked:
    return octets[:, 2:] ^ np.uint8(128), _half(octets, 0), None


def _q2_k(octets: Octets) -> Unpacked:
    of_groups = octets[:, :16]
    scales = _half(octets, 80) * (of_groups & 15).astype(np.float32)
    offsets = -(_half(octets, 82) * (of_groups >> 4).astype(np.float32))
    return _pairs(octets[:, 16:80]), scales, offsets


def _q3_k(octets: Octets) -> Unpacked:
    codes = _pairs(octets[:, 32:96]) | _bits_by_group(octets[:, :32]) << np.uint8(2)
    low = _nibbles(octets[:, 96:104], 8)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = ((octets[:, None, 104:108] >> shifts) & np.uint8(3)).reshape(len(octets), -1)
    of_groups = (low | high << np.uint8(4)).astype(np.float32) - 32
    return codes, _half(octets, 108) * of_groups, None


def _six_bit_pairs(octets: Octets) -> tuple[Codes, Codes]:
    """Return the eight scales and the eight minima that 12 bytes of a block hold."""
    first, second, rest = octets[:, :4], octets[:, 4:8], octets[:, 8:]
    scales = [first & 63, rest & 15 | first >> 6 << np.uint8(4)]
    minima = [second & 63, rest >> 4 | second >> 6 << np.uint8(4)]
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def _scaled_pairs(octets: Octets) -> tuple[Floats, Floats]:
    """Return scales and offsets of the groups in a block with 6 bits for each."""
    scales, minima = _six_bit_pairs(octets[:, 4:16])
    offsets = -(_half(octets, 2) * minima.astype(np.float32))
    return _half(octets, 0) * scales.astype(np.float32), offsets


def _q4_k(octets: Octets) -> Unpacked:
    return _nibbles(octets[:, 16:], 32), *_scaled_pairs(octets)


def _q5_k(octets: Octets) -> Unpacked:
    codes = _nibbles(octets[:, 48:], 32) | _bits_by_group(octets[:, 16:48]) << np.uint8(4)
    return codes, *_scaled_pairs(octets)


def _q6_k(octets: Octets) -> Unpacked:
    low = _nibbles(octets[:, :128], 64)
    codes = low | _pairs(octets[:, 128:192]) << np.uint8(4)
    of_groups = octets[:, 192:208].view(np.int8).astype(np.float32)
    return codes, _half(octets, 208) * of_groups, None


def _iq4_xs(octets: Octets) -> Unpacked:
    low = halves(octets[:, 4:8], low_first=True)
    high = np.ascontiguousarray(octets[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    of_groups = (low | (high & 3).astype(np.uint8) << np.uint8(4)).astype(np.float32) - 32
    return _nibbles(octets[:, 8:], 16), _half(octets, 0) * of_groups, None


def _mxfp4(octets: Octets) -> Unpacked:
    exponents = octets[:, :1].astype(np.int32) - 128
    return _nibbles(octets[:, 1:], 16), np.ldexp(np.float32(1), exponents), None


BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, 4, _q4_0, zero_point=8),
    "Q4_1": BlockFormat(32, 20, 4, _q4_1, has_offsets=True),
    "Q5_0": BlockFormat(32, 22, 5, _q5_0, zero_point=16),
    "Q5_1": BlockFormat(32, 24, 5, _q5_1, has_offsets=True),
    "Q8_0": BlockFormat(32, 34, 8, _q8_0, zero_point=128),
    "Q2_K": BlockFormat(256, 84, 2, _q2_k, group_size=16, has_offsets=True),
    "Q3_K": BlockFormat(256, 110, 3, _q3_k, zero_point=4, group_size=16),
    "Q4_K": BlockFormat(256, 144, 4, _q4_k, has_offsets=True),
    "Q5_K": BlockFormat(256, 176, 5, _q5_k, has_offsets=True),
    "Q6_K": BlockFormat(256, 210, 6, _q6_k, zero_point=32, group_size=16),
    "IQ4_NL": BlockFormat(32, 18, 4, _q4_0, levels=NL_LEVELS),
    "IQ4_XS": BlockFormat(256, 136, 4, _iq4_xs, levels=NL_LEVELS),
    "MXFP4": BlockFormat(32, 17, 4, _mxfp4, levels=FP4_LEVELS),
}
"""The formats, by their names in GGUF."""
