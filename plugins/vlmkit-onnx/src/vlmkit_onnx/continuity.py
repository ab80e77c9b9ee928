"""Whether a decoder continues what it began: tried on a few tokens when it is loaded.

A graph can look as expected and yet have been traced for whole prompts only, or take lengths from
the wrong place; and one that was right where it was exported may not be so on another device or
another CPU. What comes in chunks and beside a row of another length must then give what the whole
sequence alone gives, up to rounding. Two steps grow the same rows: what is bound once for both may
be read in the first only.
"""

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoder import Decoder, DecoderSpec, Floats, Tokens
from vlmkit_onnx.foreign_decoder import part_of
from vlmkit_onnx.prompt_inputs import PromptInputs, visible, visible_to_last

NUM_TOKENS = 6
LEAST_CORRELATION = 0.9  # scales over a whole batch, in eight bits, stay above; other tokens do not
SPREAD = 0.05  # of made-up embeddings, about that of a token table


def refuse_discontinuous(decoder: Decoder, file: str, *, hint: str = "") -> None:
    """Compute a few tokens whole, in chunks and in a batch; the slots are empty afterwards.

    Args:
        decoder: is tried.
        file: its graph, for messages.
        hint: what to do where it is refused.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how the tokens come.
    """
    tokens = _tokens(decoder.spec)
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
        chunk = _chunk(spec, tokens, start, stop)
        return decoder.prefill(slot, start, chunk, wants_logits=True)[0].copy()

    whole, short, rest = prefill(0, 0, 6), prefill(0, 0, 3), prefill(0, 3, 6)
    starts = np.array([4, 1][: decoder.memory.num_slots], np.int32)
    if len(starts) > 1:
        prefill(1, 0, 1)
    decoder.decode(0, starts, _column(spec, tokens, starts))
    rows = decoder.decode(0, starts + 1, _column(spec, tokens, starts + 1))
    in_batch = [("in a batch", *pair) for pair in zip(rows, (whole, short), strict=False)]
    return [("in chunks", rest, whole), *in_batch]


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


def _chunk(spec: DecoderSpec, tokens: Tokens, start: int, stop: int) -> Tokens:
    """Return tokens ``[start, stop)`` of the only row, as text after those before them."""
    chunk = part_of(tokens, columns=slice(start, stop))
    if spec.takes_bias:
        text = np.full(stop, -1, np.int32)
        inputs = PromptInputs(None, 0, text, np.zeros_like(text), text)
        _add_biases(chunk, visible(inputs, start, stop, None))
    return _with_deepstack(spec, chunk)


def _column(spec: DecoderSpec, tokens: Tokens, places: NDArray[np.int32]) -> Tokens:
    """Return rows of one token each, from some places of the only row."""
    rows = tokens.embeddings
    column = Tokens(
        tokens.ids[0, places][:, None],
        None if rows is None else rows[0, places][:, None],
        tokens.positions[:, 0, places][:, :, None],
    )
    if spec.takes_bias:
        _add_biases(column, visible_to_last(places, None))
    return _with_deepstack(spec, column)


def _add_biases(tokens: Tokens, biases: tuple[Floats, Floats]) -> None:
    tokens.extras.update(attention_bias=biases[0], attention_bias_local=biases[1])


def _with_deepstack(spec: DecoderSpec, tokens: Tokens) -> Tokens:
    if (levels := spec.no_deepstack(*tokens.ids.shape)) is not None:
        tokens.extras["deepstack"] = levels
    return tokens
