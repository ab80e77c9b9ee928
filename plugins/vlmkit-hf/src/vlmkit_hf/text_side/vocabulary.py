"""Classifies the tokens of a vocabulary, and checks it against the model's embeddings."""

from collections.abc import Collection, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.templates.reasoning import ReasoningMarks
from vlmkit_hf.templates.template import ChatTemplate
from vlmkit_hf.text_side.parts import TextParts


def control_tokens(
    parts: TextParts, templates: Collection[ChatTemplate], marks: ReasoningMarks | None
) -> set[str]:
    """Return the added tokens that only a template or a processor may write.

    Those are all special tokens, the tokens that the processor writes, the tokens that a chat
    template mentions, and the marks of reasoning, which a template may not mention. Other
    added tokens, such as ``<table>`` in Gemma's vocabulary, are ordinary words for clients too.
    """
    added = parts.backend.get_added_tokens_decoder().values()
    chosen = {token.content for token in added if token.special}
    if parts.images is not None:
        chosen |= parts.images.control_tokens
    words = [t.content for t in added if not t.content.isspace()]
    for template in templates:
        chosen |= {word for word in words if template.mentions(word)}
    if marks is not None:
        chosen |= parts.added.keys() & {marks.start, marks.end}
    return chosen


def silent_tokens(parts: TextParts, templates: Collection[ChatTemplate]) -> set[str]:
    """Return the special tokens that no template writes, and the placeholders."""
    added = parts.backend.get_added_tokens_decoder()
    banned = parts.images.banned_ids if parts.images else frozenset()
    return {
        token.content
        for number, token in added.items()
        if number in banned
        or (
            token.special
            and token.content not in (parts.bos, parts.eos)
            and not any(template.mentions(token.content) for template in templates)
        )
    }


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
