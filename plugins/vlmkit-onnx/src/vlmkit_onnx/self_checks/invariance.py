"""Whether a graph gives a row the same bits in every batch: tried where a graph claims it.

An exporter claims what held where it was measured. ONNX Runtime chooses other kernels on other
CPUs: with AVX2 alone, its kernel for weights of four bits sums a lone row in another order than a
row of a batch. Whoever runs the graph there must not promise it.
"""

import numpy as np

from vlmkit_onnx.decoders.decoder import Decoder, Floats
from vlmkit_onnx.self_checks.sample_tokens import column_of, made_up_tokens

BATCHES = (1, 2, 5)  # kernels take rows in twos and fours, and what is left over by itself


def keeps_rows_apart(decoder: Decoder) -> bool:
    """Compute rows of different lengths alone and together; compare all bits.

    The slots hold nothing of a sequence before, and nothing afterwards.
    """
    tokens = made_up_tokens(decoder.spec)
    sizes = [size for size in BATCHES if size <= decoder.memory.num_slots]

    def logits(first: int, stop: int) -> Floats:
        starts = np.arange(first, stop, dtype=np.int32)
        return decoder.decode(first, starts, column_of(decoder.spec, tokens, starts)).copy()

    try:
        alone = np.concatenate([logits(row, row + 1) for row in range(sizes[-1])])
        return all(np.array_equal(logits(0, size), alone[:size]) for size in sizes)
    finally:
        for slot in range(sizes[-1]):
            decoder.memory.discard(slot)
