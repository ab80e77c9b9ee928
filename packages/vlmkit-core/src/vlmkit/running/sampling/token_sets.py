"""Sets of tokens as bitmasks: token ``i`` is bit ``i % 32`` of word ``i // 32``."""

from collections.abc import Iterable
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

BITS = 32
Words = NDArray[np.int32]


def num_words(vocab_size: int) -> int:
    """Return how many words a bitmask of the vocabulary has."""
    return -(-vocab_size // BITS)


def words_of(token_ids: Iterable[int], vocab_size: int) -> Words:
    """Return the bitmask ``[words]`` of some tokens."""
    is_in = np.zeros(BITS * num_words(vocab_size), np.bool_)
    is_in[list(token_ids)] = True
    return np.packbits(is_in, bitorder="little").view("<i4").astype(np.int32, copy=False)


def holds(words: Words, token_id: int) -> bool:
    """Return whether a token is in a bitmask ``[words]``."""
    return bool(words[token_id // BITS] >> (token_id % BITS) & 1)


def flags(xp: Any, words: Any, vocab_size: int) -> Any:
    """Return bitmasks ``[rows, words]`` as booleans ``[rows, vocab]``, in any array library."""
    if array_api_compat.is_numpy_array(words):
        octets = words.astype("<i4", copy=False).view(np.uint8)
        found = np.unpackbits(octets, axis=-1, count=vocab_size, bitorder="little")
        return found.view(np.bool_)
    shifts = xp.arange(BITS, dtype=xp.int32, device=array_api_compat.device(words))
    spread = (words[:, :, None] >> shifts) & 1
    return xp.reshape(spread, (words.shape[0], -1))[:, :vocab_size] != 0
