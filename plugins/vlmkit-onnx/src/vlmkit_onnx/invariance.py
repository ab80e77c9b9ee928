"""Whether a graph gives a row the same bits in every batch: tried where a graph claims it.

An exporter claims what held where it was measured. ONNX Runtime chooses other kernels on other
CPUs: with AVX2 alone, its kernel for weights of four bits sums a lone row in another order than a
row of a batch. Whoever runs the graph there must not promise it.
"""

import numpy as np
from numpy.typing import NDArray

from vlmkit_onnx.decoder import Decoder, DecoderSpec, Floats, Tokens
from vlmkit_onnx.foreign_decoder import part_of
from vlmkit_onnx.prompt_inputs import visible_to_last

BATCHES = (1, 2, 5)  # kernels take rows in twos and fours, and what is left over by itself
SPREAD = 0.05  # of made-up embeddings, about that of a token table


def keeps_rows_apart(decoder: Decoder, window: int | None) -> bool:
    """Compute first tokens alone and together and compare all bits; slots are empty afterwards.

    Args:
        decoder: runs the graph.
        window: tokens that layers with a window see, where masks come from the host.
    """
    sizes = [size for size in BATCHES if size <= decoder.memory.num_slots]
    tokens = _tokens(decoder.spec, sizes[-1])

    def logits(first: int, stop: int) -> Floats:
        part = part_of(tokens, slice(first, stop))
        starts = np.zeros(stop - first, np.int32)
        part.extras.update(_extras(decoder.spec, starts, window))
        return decoder.decode(first, starts, part).copy()

    try:
        alone = np.concatenate([logits(row, row + 1) for row in range(sizes[-1])])
        return all(np.array_equal(logits(0, size), alone[:size]) for size in sizes)
    finally:
        for slot in range(sizes[-1]):
            decoder.memory.discard(slot)


def _tokens(spec: DecoderSpec, num_rows: int) -> Tokens:
    """Return a first token for each row, from all over the vocabulary, or made-up embeddings."""
    ids = np.linspace(1, spec.vocab_size - 1, num_rows).astype(np.int64)[:, None]
    positions = np.zeros((max(1, spec.num_position_axes), num_rows, 1), np.int64)
    if not spec.takes_embeddings:
        return Tokens(ids, None, positions)
    shape = (num_rows, 1, spec.hidden_size)
    rows = np.random.default_rng(0).normal(0, SPREAD, shape).astype(np.float32)
    return Tokens(ids, rows, positions)


def _extras(spec: DecoderSpec, starts: NDArray[np.int32], window: int | None) -> dict[str, Floats]:
    extras: dict[str, Floats] = {}
    if spec.takes_bias:
        whole, near = visible_to_last(starts, window)
        extras.update(attention_bias=whole, attention_bias_local=near)
    if spec.num_deepstack:
        shape = (spec.num_deepstack, len(starts), 1, spec.hidden_size)
        extras["deepstack"] = np.zeros(shape, np.float32)
    return extras
