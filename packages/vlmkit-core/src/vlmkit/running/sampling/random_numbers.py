"""Counter-based random numbers: functions of seed, position and token id.

Adding Gumbel noise to logits and taking the largest sum samples from their softmax (Maddison et
al., 2014, arXiv:1411.0030). The noise is a hash (a counter-based generator: Salmon et al., 2011).
There is no generator state, so neither the rest of a batch nor a preemption changes a choice.

The functions compute on arrays of any library, on their device, without reading them back.
"""

import hashlib
import math
from typing import Any

WORD = 2**32 - 1
# Found by C. Wellons in a search for integer hashes; both are under 2**31.
MULTIPLIERS = (0x21F0AAAD, 0x7FEB352D)
LOG_RANGE = 32 * math.log(2)


def keys(seed: int, position: int) -> tuple[int, int]:
    """Return two 32-bit words that key the noise of one position of an answer."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def uniform(seed: int, position: int, what: str) -> float:
    """Return a uniform number in [0, 1) for a position, independent of the noise of tokens."""
    text = f"{seed}:{position}".encode()
    digest = hashlib.blake2b(text, digest_size=8, person=what.encode()).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def choice_seed(seed: int, index: int) -> int:
    """Return the 64-bit seed of one of several choices, independent of those of other seeds.

    The first choice has the seed of the request, so it equals the answer to a request for one.
    """
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8, person=b"choice")
    return int.from_bytes(digest.digest(), "little", signed=True)


def bits(token_ids: Any, first: Any, second: Any, mask: Any = WORD) -> Any:
    """Return 32 random bits for each token: the high bits of two rounds of multiplication.

    Args:
        token_ids: int64, or uint32, whose products wrap.
        first: the first words of the keys, of the same type; broadcast against the ids.
        second: the second words.
        mask: the bits to keep of int64; 0 gives all tokens the same noise.
    """
    is_wide = token_ids.dtype.itemsize > 4
    mixed = token_ids ^ first
    mixed *= MULTIPLIERS[0]
    if is_wide:  # a word times less than 2**31 does not leave int64
        mixed &= WORD
    mixed ^= mixed >> 16
    mixed ^= second
    mixed *= MULTIPLIERS[1]
    if is_wide:
        mixed &= mask
    return mixed


def exponentials(xp: Any, random_bits: Any, half: Any = 0.5) -> Any:
    """Return exponentially distributed numbers, float64, from 1.1e-10 to 22.9.

    Args:
        xp: the namespace of the arrays.
        random_bits: 32 bits each; the uniform numbers are ``(random_bits + 0.5) / 2**32``.
        half: 0.5, as a float64 array where the library would promote integers to float32.
    """
    return LOG_RANGE - xp.log(random_bits + half)


def add_gumbel_noise(xp: Any, logits: Any, temperatures: Any, exponential: Any) -> Any:
    """Return logits over temperature plus Gumbel noise, float64.

    Args:
        xp: the namespace of the arrays.
        logits: float32.
        temperatures: float64, broadcast against the logits.
        exponential: exponentially distributed numbers; the noise is minus their logarithm.
    """
    return logits / temperatures - xp.log(exponential)
