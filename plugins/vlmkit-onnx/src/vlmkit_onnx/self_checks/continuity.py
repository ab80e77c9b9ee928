"""Checks at load that a decoder's logits do not depend on how tokens are split into calls.

A graph can have the expected inputs and yet support whole prompts only, or take lengths from the
wrong input. A graph that was correct where it was exported may fail on another device or CPU.
Tokens in chunks, beside a row of another length, must give the logits of the whole sequence alone,
up to rounding. Two steps extend the same rows, because an input that is bound once for both may be
read in the first only.
"""

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.decoder import Decoder, Floats, Tokens
from vlmkit_onnx.self_checks.sample_tokens import NUM_TOKENS, chunk_of, column_of, sample_tokens

MIN_CORRELATION = (
    0.9  # 8-bit scales over a whole batch stay above it; logits of other tokens do not
)


def refuse_discontinuous(decoder: Decoder, file: str, *, hint: str = "") -> None:
    """Compare a few tokens at once, in chunks and in a batch; the slots are empty afterwards.

    Args:
        decoder: to check.
        file: its graph, for messages.
        hint: of the error.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how tokens are split.
    """
    tokens = sample_tokens(decoder.spec)
    try:
        pairs = _compute(decoder, tokens)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise CheckpointError(
            f"{file!r} does not compute {NUM_TOKENS} tokens with the shapes that it states",
            hint=hint,
        ) from error
    finally:
        for slot in range(min(2, decoder.memory.num_slots)):
            decoder.memory.discard(slot)
    for what, ours, whole in pairs:
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.corrcoef(ours, whole)[0, 1]
        if not correlation >= MIN_CORRELATION:
            raise CheckpointError(
                f"{file!r} gives other logits for tokens {what} than for the whole sequence",
                hint=hint,
            )


def _compute(decoder: Decoder, tokens: Tokens) -> list[tuple[str, Floats, Floats]]:
    """Return pairs of logits that must agree, each with the origin of the first."""
    spec = decoder.spec

    def prefill(slot: int, start: int, stop: int) -> Floats:
        chunk = chunk_of(spec, tokens, start, stop)
        (row,) = decoder.prefill(slot, start, chunk, num_rows=1).copy()
        return np.asarray(row)

    whole, short, rest = prefill(0, 0, 6), prefill(0, 0, 3), prefill(0, 3, 6)
    starts = np.array([4, 1][: decoder.memory.num_slots], np.int32)
    if len(starts) > 1:
        prefill(1, 0, 1)
    decoder.decode(0, starts, column_of(spec, tokens, starts))
    rows = decoder.decode(0, starts + 1, column_of(spec, tokens, starts + 1))
    in_batch = [("in a batch", *pair) for pair in zip(rows, (whole, short), strict=False)]
    return [("in chunks", rest, whole), *in_batch]
