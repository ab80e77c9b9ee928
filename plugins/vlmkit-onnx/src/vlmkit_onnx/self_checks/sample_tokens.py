"""Generates tokens for the checks of a decoder. Checks nothing."""

import numpy as np
from numpy.typing import NDArray

from vlmkit_onnx.decoders.decoder import DecoderSpec, Floats, Tokens
from vlmkit_onnx.decoders.foreign_decoder import part_of
from vlmkit_onnx.prompts.prompt_inputs import PromptInputs, visible, visible_to_last

NUM_TOKENS = 6
SPREAD = 0.05  # of random embeddings, about that of a token table


def sample_tokens(spec: DecoderSpec) -> Tokens:
    """Return one row of tokens from all parts of the vocabulary, or random embeddings."""
    ids = np.linspace(1, spec.vocab_size - 1, NUM_TOKENS).astype(np.int64)[None]
    axes = max(1, spec.num_position_axes)
    positions = np.broadcast_to(np.arange(NUM_TOKENS), (axes, 1, NUM_TOKENS)).copy()
    if not spec.takes_embeddings:
        return Tokens(ids, None, positions)
    shape = (1, NUM_TOKENS, spec.hidden_size)
    rows = np.random.default_rng(0).normal(0, SPREAD, shape).astype(np.float32)
    return Tokens(ids, rows, positions)


def chunk_of(spec: DecoderSpec, tokens: Tokens, start: int, stop: int) -> Tokens:
    """Return tokens ``[start, stop)`` of the row, as a chunk of text after the earlier ones."""
    chunk = part_of(tokens, columns=slice(start, stop))
    if spec.takes_bias:
        text = np.full(stop, -1, np.int32)
        inputs = PromptInputs(None, 0, text, np.zeros_like(text), text)
        _add_biases(chunk, visible(inputs, start, stop, None))
    return _with_deepstack(spec, chunk)


def column_of(spec: DecoderSpec, tokens: Tokens, indices: NDArray[np.int32]) -> Tokens:
    """Return rows of one token each, from some indices of the row."""
    rows = tokens.embeddings
    column = Tokens(
        tokens.ids[0, indices][:, None],
        None if rows is None else rows[0, indices][:, None],
        tokens.positions[:, 0, indices][:, :, None],
    )
    if spec.takes_bias:
        _add_biases(column, visible_to_last(indices, None))
    return _with_deepstack(spec, column)


def _add_biases(tokens: Tokens, biases: tuple[Floats, Floats]) -> None:
    tokens.extras.update(attention_bias=biases[0], attention_bias_local=biases[1])


def _with_deepstack(spec: DecoderSpec, tokens: Tokens) -> Tokens:
    if (levels := spec.no_deepstack(*tokens.ids.shape)) is not None:
        tokens.extras["deepstack"] = levels
    return tokens
