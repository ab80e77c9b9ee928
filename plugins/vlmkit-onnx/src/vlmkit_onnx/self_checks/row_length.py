"""How long a row of a decoder may get before other rows are computed otherwise: tried at load.

A graph that others exported may look at its longest row and choose by it how all of them are
rotated, as onnxruntime-genai's builder has it for Phi-3 with 128k. Up to some length the others are
left alone, and only as far do answers not depend on who else asks.
"""

from collections.abc import Callable

import numpy as np

from vlmkit_onnx.decoders.decoder import Decoder, Floats
from vlmkit_onnx.self_checks.sample_tokens import NUM_TOKENS, chunk_of, column_of, made_up_tokens

PLACE = 31  # of the row that is looked at: far enough from its tokens for rotation to matter
TOLERANCE = 1e-3  # of the largest logit


def tokens_without_effect(decoder: Decoder, most: int) -> int:
    """Return the longest row, of at most ``most`` tokens, that changes no other row.

    Leaves rubbish in the first two slots of the decoder, which were empty.
    """
    if most <= PLACE + NUM_TOKENS:
        return most
    tokens = made_up_tokens(decoder.spec)
    whole = chunk_of(decoder.spec, tokens, 0, NUM_TOKENS)
    for start in range(0, PLACE, NUM_TOKENS):  # what nobody wrote may be no number
        decoder.prefill(0, start, whole, num_rows=0)

    def beside(length: int, neighbour: int = 0) -> Floats:
        column = column_of(decoder.spec, tokens, np.array([0, neighbour], np.int32))
        column.positions[:] = np.array([PLACE, length - 1])[:, None]
        starts = np.array([PLACE, length - 1], np.int32)
        row: Floats = decoder.decode(0, starts, column)[0].copy()
        return row

    alone = beside(PLACE + 1)
    margin = TOLERANCE * float(np.abs(alone).max())

    def is_alone(row: Floats) -> bool:
        return bool(np.abs(row - alone).max() <= margin)

    if not is_alone(beside(PLACE + 1, NUM_TOKENS - 1)):
        return most  # every neighbour changes it, of whatever length: nothing is learned of lengths
    return _last(lambda length: is_alone(beside(length)), most)


def _last(holds: Callable[[int], bool], most: int) -> int:
    """Return the last length for which something holds that ends once, by doubling and halving."""
    low = PLACE + 1
    high = min(2 * low, most)
    while holds(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
