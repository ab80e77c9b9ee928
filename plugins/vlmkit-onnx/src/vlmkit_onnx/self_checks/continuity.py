"""Whether a decoder continues what it began: tried on a few tokens when it is loaded.

A graph can look as expected and yet have been traced for whole prompts only, or take lengths from
the wrong place; and one that was right where it was exported may not be so on another device or
another CPU. What comes in chunks and beside a row of another length must then give what the whole
sequence alone gives, up to rounding. Two steps grow the same rows: what is bound once for both may
be read in the first only.
"""

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.decoder import Decoder, Floats, Tokens
from vlmkit_onnx.self_checks.sample_tokens import NUM_TOKENS, chunk_of, column_of, made_up_tokens

LEAST_CORRELATION = 0.9  # scales over a whole batch, in eight bits, stay above; other tokens do not


def refuse_discontinuous(decoder: Decoder, file: str, *, hint: str = "") -> None:
    """Compute a few tokens whole, in chunks and in a batch; the slots are empty afterwards.

    Args:
        decoder: is tried.
        file: its graph, for messages.
        hint: what to do where it is refused.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how the tokens come.
    """
    tokens = made_up_tokens(decoder.spec)
    try:
        pairs = _compute(decoder, tokens)
    except Exception as error:  # of ONNX Runtime, whose exceptions have no common parent
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
        if not correlation >= LEAST_CORRELATION:
            raise CheckpointError(
                f"{file!r} gives other logits for tokens {what} than for the whole sequence",
                hint=hint,
            )


def _compute(decoder: Decoder, tokens: Tokens) -> list[tuple[str, Floats, Floats]]:
    """Return pairs of logits that should agree, and what the first of them came from."""
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
