"""Whether a foreign decoder continues what it began: tried on a few tokens when it is loaded.

A graph can look as expected and yet have been traced for whole prompts only, or take lengths from
the wrong place. What comes in chunks and beside a row of another length must then give what the
whole sequence alone gives, up to rounding.
"""

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoder import Decoder, DecoderSpec, Floats, Tokens
from vlmkit_onnx.foreign_decoder import part_of

NUM_TOKENS = 6
LEAST_CORRELATION = 0.9  # scales over a whole batch, in eight bits, stay above; other tokens do not
SPREAD = 0.05  # of made-up embeddings, about that of a token table


def refuse_discontinuous(decoder: Decoder, file: str) -> None:
    """Compute a few tokens whole, in chunks and in a batch; the slots are empty afterwards.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how the tokens come.
    """
    tokens = _tokens(decoder.spec)
    try:
        pairs = _compute(decoder, tokens)
    except Exception as error:  # of ONNX Runtime, whose exceptions have no common parent
        raise CheckpointError(
            f"{file!r} does not compute {NUM_TOKENS} tokens with the shapes that it states"
        ) from error
    finally:
        for slot in range(min(2, decoder.memory.num_slots)):
            decoder.memory.discard(slot)
    for what, ours, whole in pairs:
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.corrcoef(ours, whole)[0, 1]
        if not correlation >= LEAST_CORRELATION:
            raise CheckpointError(
                f"{file!r} gives other logits for tokens {what} than for the whole sequence"
            )


def _compute(decoder: Decoder, tokens: Tokens) -> list[tuple[str, Floats, Floats]]:
    """Return pairs of logits that should agree, and what the first of them came from."""
    whole = decoder.prefill(0, 0, part_of(tokens, columns=slice(0, 6)), wants_logits=True).copy()
    short = decoder.prefill(0, 0, part_of(tokens, columns=slice(0, 3)), wants_logits=True).copy()
    rest = decoder.prefill(0, 3, part_of(tokens, columns=slice(3, 6)), wants_logits=True).copy()
    pairs = [("in chunks", rest[0], whole[0])]
    starts = np.array([5, 2][: decoder.memory.num_slots], np.int32)
    if len(starts) > 1:
        decoder.prefill(1, 0, part_of(tokens, columns=slice(0, 2)), wants_logits=False)
    rows = decoder.decode(0, starts, _column(tokens, starts))
    references = [whole[0], short[0]]
    return pairs + [("in a batch", *pair) for pair in zip(rows, references, strict=False)]


def _tokens(spec: DecoderSpec) -> Tokens:
    """Return one row of tokens from all over the vocabulary, or made-up embeddings."""
    ids = np.linspace(1, spec.vocab_size - 1, NUM_TOKENS).astype(np.int64)[None]
    axes = max(1, spec.num_position_axes)
    positions = np.broadcast_to(np.arange(NUM_TOKENS), (axes, 1, NUM_TOKENS)).copy()
    if not spec.takes_embeddings:
        return Tokens(ids, None, positions)
    shape = (1, NUM_TOKENS, spec.hidden_size)
    rows = np.random.default_rng(0).normal(0, SPREAD, shape).astype(np.float32)
    return Tokens(ids, rows, positions)


def _column(tokens: Tokens, places: NDArray[np.int32]) -> Tokens:
    """Return rows of one token each, from some places of the only row."""
    rows = tokens.embeddings
    return Tokens(
        tokens.ids[0, places][:, None],
        None if rows is None else rows[0, places][:, None],
        tokens.positions[:, 0, places][:, :, None],
    )
