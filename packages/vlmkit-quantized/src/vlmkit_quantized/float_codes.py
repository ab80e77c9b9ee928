"""The values of floats of 4 and 8 bits, by their codes.

E2M1 and E8M0 are those of OCP's Microscaling Formats; E4M3 has no infinity, and two codes that are
no number.
"""

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized.stored import Floats

_ONE_OF_E8M0 = 127
_NAN_OF_E8M0 = 255


def decoded(codes: NDArray[np.uint8], levels: Floats) -> Floats:
    """Return the values of codes."""
    values: Floats = levels[codes]
    return values


def _of(exponent_bits: int, mantissa_bits: int, bias: int) -> Floats:
    """Return the values of all codes of a format with a sign, an exponent and a mantissa."""
    codes = np.arange(2 ** (1 + exponent_bits + mantissa_bits))
    mantissa = codes % 2**mantissa_bits
    exponent = codes >> mantissa_bits & (2**exponent_bits - 1)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    is_normal = exponent > 0
    fraction = mantissa / 2**mantissa_bits + is_normal
    values: Floats = (sign * np.ldexp(fraction, np.maximum(exponent, 1) - bias)).astype(np.float32)
    return values


def _e4m3() -> Floats:
    values = _of(4, 3, 7)
    values[[0x7F, 0xFF]] = np.nan
    return values


def _e8m0() -> Floats:
    values = np.ldexp(np.ones(256), np.arange(256) - _ONE_OF_E8M0)
    values[_NAN_OF_E8M0] = np.nan
    return values.astype(np.float32)


E2M1 = _of(2, 1, 1)
E4M3 = _e4m3()
E8M0 = _e8m0()
