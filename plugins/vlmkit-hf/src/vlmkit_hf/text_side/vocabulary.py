"""Checks that a model has an embedding for every token that a prompt can have."""

from collections.abc import Collection, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint


def refuse_unknown_tokens(
    checkpoint: Checkpoint,
    vocabulary: Mapping[str, int],
    silent: Collection[str],
) -> None:
    """Refuse a vocabulary with tokens that have no embedding.

    Args:
        checkpoint: the model's files.
        vocabulary: the ids of all tokens, by text.
        silent: tokens that no prompt has, or that stand for image features.

    Raises:
        CheckpointError: a prompt can have a token without an embedding.
    """
    num_rows = _num_embeddings(checkpoint.answering)
    if num_rows is None:
        return
    beyond = {text: number for text, number in vocabulary.items() if number >= num_rows}
    for text in silent:
        beyond.pop(text, None)
    if beyond:
        first = min(beyond, key=lambda text: beyond[text])
        raise CheckpointError(
            f"the tokenizer of {checkpoint.name!r} has {len(beyond)} tokens for which the model "
            f"has no embedding, such as {first!r}: by config.json, vocab_size is {num_rows}",
            hint="take the tokenizer that was saved with these weights",
        )


def _num_embeddings(config: Mapping[str, Any]) -> int | None:
    """Return the vocabulary size of a config; None if it has none."""
    text = config.get("text_config")
    for part in (text, config):
        if isinstance(part, Mapping) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return None
