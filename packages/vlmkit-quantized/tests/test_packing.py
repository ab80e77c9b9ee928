"""Numbers of few bits come out of words as they went in."""

import numpy as np
import pytest
from hypothesis import given, strategies as some
from numpy.typing import NDArray

from vlmkit_quantized import packing


def by_arithmetic(words: NDArray[np.uint32], bits: int, num: int) -> list[list[int]]:
    """Return the numbers by one integer of Python for each row."""
    streams = [int.from_bytes(row.astype("<u4").tobytes(), "little") for row in words]
    return [[(stream >> (bits * i)) % 2**bits for i in range(num)] for stream in streams]


@given(
    bits=some.integers(1, 8), rows=some.integers(1, 5), num=some.integers(1, 80), data=some.data()
)
def test_numbers_are_a_stream_of_bits(
    bits: int, rows: int, num: int, data: some.DataObject
) -> None:
    seed = data.draw(some.integers(0, 2**32 - 1))
    words = np.random.default_rng(seed).integers(
        0, 2**32, (rows, -(-num * bits // 32)), dtype=np.uint32
    )

    found = packing.unpack_words(words, bits, num)

    assert found.tolist() == by_arithmetic(words, bits, num)


@pytest.mark.parametrize("bits", [3, 4])
def test_rows_are_unpacked_in_parts(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (7, 12), dtype=np.uint32)
    whole = packing.unpack_words(words, bits, 90)
    monkeypatch.setattr(packing, "ROWS_BYTES", 100)

    assert np.array_equal(packing.unpack_words(words, bits, 90), whole)


@pytest.mark.parametrize(("low_first", "wanted"), [(True, [1, 2, 3, 4]), (False, [2, 1, 4, 3])])
def test_a_byte_has_two_halves(low_first: bool, wanted: list[int]) -> None:
    octets = np.array([0x21, 0x43], np.uint8)

    assert packing.halves(octets, low_first=low_first).tolist() == wanted
