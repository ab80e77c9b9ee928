"""Rounds plain weights to integers, in the common form. Reads no files and no inputs of a layer.

Symmetric: the largest magnitude of a group becomes the largest code. Otherwise the range of codes
is that of the weights, or a part of it. The part with the least squared error is taken for each
group. Values beyond it become its ends.

Sources: Nagel et al., "A White Paper on Neural Network Quantization" (2021), section 3.1, for both
ranges. Choukroun et al., "Low-bit Quantization of Neural Networks for Efficient Inference" (2019),
for the search.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.rounding_schemes import RoundingScheme
from vlmkit_quantized.stored import Floats
from vlmkit_quantized.weight import QuantizedLinear

PARTS = (1.0, 0.94, 0.88, 0.82, 0.76)  # more of them lower the error by less than a hundredth
PIECE_NUMBERS = 2**17  # that are rounded at once, so that they stay in the cache of a core


def rounded(weight: Floats, scheme: RoundingScheme, num_threads: int = 1) -> QuantizedLinear:
    """Return a weight, rounded to the nearest codes.

    Scales have 8 significant bits, as those of bfloat16. So what computes in bfloat16 has them
    exactly.

    Args:
        weight: of shape ``[outputs, inputs]``.
        scheme: a group size of it divides the inputs.
        num_threads: that compute.

    Raises:
        FormatError: there are no numbers, one is not finite, the scale of a group is too large for
            float32, or no group size fits.
    """
    rows, columns = weight.shape
    if not weight.size:
        raise FormatError(f"has the shape {[rows, columns]}, without numbers")
    if (size := scheme.group_size(columns)) is None:
        raise FormatError(f"has {columns} inputs, which no group size of {scheme.name} divides")
    groups = weight.reshape(-1, size)
    codes = np.empty(groups.shape, np.uint8)
    scales = np.empty(len(groups), np.float32)
    zeros = np.full(len(groups), 2 ** (scheme.bits - 1), np.int16)

    def of_piece(piece: slice) -> bool:
        numbers = groups[piece]
        if not np.isfinite(numbers).all():
            return False
        if scheme.is_symmetric:
            codes[piece], scales[piece] = _symmetric(numbers, scheme.bits)
        else:
            codes[piece], scales[piece], zeros[piece] = _searched(numbers, scheme.bits)
        return True

    with ThreadPoolExecutor(num_threads) as pool:
        if not all(pool.map(of_piece, _pieces(len(groups), size))):
            raise FormatError("has values that are not finite")
    return QuantizedLinear(
        codes=codes.reshape(rows, columns),
        bits=scheme.bits,
        scales=scales.reshape(rows, -1),
        zero_points=zeros[:1, None] if scheme.is_symmetric else zeros.reshape(rows, -1),
    )


def _symmetric(numbers: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats]:
    """Return codes and scales of groups ``[num, size]``."""
    middle = 2 ** (bits - 1)
    largest = np.maximum(numbers.max(-1), -numbers.min(-1))
    scales = _to_bfloat16(largest / np.float32(middle - 1))
    codes = numbers * _inverses(scales)[:, None]
    np.rint(codes, codes)
    np.clip(codes, 1 - middle, middle - 1, codes)
    codes += middle
    return codes.astype(np.uint8), scales


def _searched(numbers: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats, NDArray[np.float32]]:
    """Return codes, scales and zero points of groups ``[num, size]``, with the least error."""
    top = np.float32(2**bits - 1)
    # Squares of numbers above 1e19 are infinite. The whole range is then as good as any other.
    with np.errstate(over="ignore", invalid="ignore"):
        return _best_of(numbers, top)


def _best_of(
    numbers: Floats, top: np.float32
) -> tuple[NDArray[np.uint8], Floats, NDArray[np.float32]]:
    low, high = np.minimum(numbers.min(-1), 0), np.maximum(numbers.max(-1), 0)
    codes, values = np.empty_like(numbers), np.empty_like(numbers)
    best = np.full(len(numbers), np.inf, np.float32)
    best_codes = np.zeros(numbers.shape, np.uint8)
    best_scales, best_zeros = np.zeros_like(best), np.zeros_like(best)
    for part in map(np.float32, PARTS):
        scales = _to_bfloat16((high * part - low * part) / top)
        inverses = _inverses(scales)
        zeros = np.clip(np.rint(-low * part * inverses), 0, top)
        np.multiply(numbers, inverses[:, None], codes)
        np.rint(codes, codes)
        np.clip(codes, -zeros[:, None], (top - zeros)[:, None], codes)
        np.multiply(codes, scales[:, None], values)
        values -= numbers
        errors = np.einsum("ij,ij->i", values, values)
        is_better = errors < best if part < 1 else np.ones(len(numbers), np.bool_)
        best[is_better] = errors[is_better]
        codes += zeros[:, None]
        best_codes[is_better] = codes[is_better]
        best_scales[is_better], best_zeros[is_better] = scales[is_better], zeros[is_better]
    return best_codes, best_scales, best_zeros


def _inverses(scales: Floats) -> Floats:
    """Return the inverses of scales; zero for those of groups without magnitude."""
    inverses = np.zeros_like(scales)
    np.divide(1, scales, inverses, where=scales > np.finfo(np.float32).tiny)
    return inverses


def _to_bfloat16(numbers: Floats) -> Floats:
    """Return positive numbers rounded to 8 significant bits, to the nearest even one of two."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def _pieces(num_groups: int, size: int) -> Iterator[slice]:
    """Yield groups that are rounded at once."""
    step = max(1, PIECE_NUMBERS // size)
    for first in range(0, num_groups, step):
        yield slice(first, first + step)
