"""Finds at load how long a row of a decoder may be without changing other rows.

A graph of another exporter may select the rotation of all rows by its longest row, as graphs of
onnxruntime-genai's builder do for Phi-3 with 128k. Up to some length, other rows do not change.
Only then are answers independent of other requests.
"""

from collections.abc import Callable

import numpy as np

from vlmkit_onnx.decoders.decoder import Decoder, Floats
from vlmkit_onnx.self_checks.sample_tokens import NUM_TOKENS, chunk_of, column_of, sample_tokens

POSITION = 31  # of the observed row: far enough from its tokens for rotation to matter
TOLERANCE = 1e-3  # of the largest logit


def max_independent_tokens(decoder: Decoder, most: int) -> int:
    """Return the longest row, of at most ``most`` tokens, that changes no other row.

    Leaves arbitrary tokens in the first two slots of the decoder, which must be empty.
    """
    if most <= POSITION + NUM_TOKENS:
        return most
    tokens = sample_tokens(decoder.spec)
    whole = chunk_of(decoder.spec, tokens, 0, NUM_TOKENS)
    for start in range(
        0, POSITION, NUM_TOKENS
    ):  # unwritten memory may hold values that are not finite
        decoder.prefill(0, start, whole, num_rows=0)

    def beside(length: int, neighbour: int = 0) -> Floats:
        column = column_of(decoder.spec, tokens, np.array([0, neighbour], np.int32))
        column.positions[:] = np.array([POSITION, length - 1])[:, None]
        starts = np.array([POSITION, length - 1], np.int32)
        row: Floats = decoder.decode(0, starts, column)[0].copy()
        return row

    alone = beside(POSITION + 1)
    margin = TOLERANCE * float(np.abs(alone).max())

    def is_alone(row: Floats) -> bool:
        return bool(np.abs(row - alone).max() <= margin)

    if not is_alone(beside(POSITION + 1, NUM_TOKENS - 1)):
        return most  # a neighbour of any length changes it, so lengths cannot be compared
    return _last(lambda length: is_alone(beside(length)), most)


def _last(holds: Callable[[int], bool], most: int) -> int:
    """Return the last length for which a monotone condition holds, by doubling and halving."""
    low = POSITION + 1
    high = min(2 * low, most)
    while holds(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
