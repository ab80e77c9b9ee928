"""Unpacks numbers of few bits from the words that hold them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
ROWS_BYTES = 2**22  # packed bytes that are unpacked at once


def unpack_words(words: NDArray[Any], bits: int, num: int) -> Codes:
    """Return the numbers in rows of 32-bit words, the lowest bits first.

    The words of a row are one stream of bits; a number may lie in two of them.

    Args:
        words: of shape ``[rows, num_words]``.
        bits: of a number, 1 to 8.
        num: numbers in a row; ``num_words`` words must hold them.

    Returns:
        An array ``[rows, num]``.
    """
    octets = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    rows, width = octets.shape
    numbers = np.empty((rows, num), np.uint8)
    step = max(1, ROWS_BYTES // max(1, width))
    unpack = _of_octets if 8 % bits == 0 else _of_bits
    for first in range(0, rows, step):
        numbers[first : first + step] = unpack(octets[first : first + step], bits)[:, :num]
    return numbers


def halves(octets: NDArray[np.uint8], *, low_first: bool) -> Codes:
    """Return the two numbers of 4 bits in each byte of an array.

    Args:
        octets: of shape ``[..., n]``.
        low_first: whether the lower bits are the first number.

    Returns:
        An array ``[..., 2 * n]``.
    """
    pair = (octets & 15, octets >> 4)
    return np.stack(pair if low_first else pair[::-1], axis=-1).reshape(*octets.shape[:-1], -1)


def _of_octets(octets: NDArray[np.uint8], bits: int) -> Codes:
    in_octet = 8 // bits
    numbers = np.empty((len(octets), octets.shape[1] * in_octet), np.uint8)
    for place in range(in_octet):
        numbers[:, place::in_octet] = octets >> (place * bits) & (2**bits - 1)
    return numbers


def _of_bits(octets: NDArray[np.uint8], bits: int) -> Codes:
    stream = np.unpackbits(octets, axis=1, bitorder="little")
    whole = stream.shape[1] // bits * bits
    return np.packbits(stream[:, :whole].reshape(len(octets), -1, bits), axis=2, bitorder="little")[
        :, :, 0
    ]
