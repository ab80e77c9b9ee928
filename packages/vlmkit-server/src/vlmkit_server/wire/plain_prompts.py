"""Prompts that are no conversation: one or several, as text or as tokens."""

from collections.abc import Sequence as Seq, Sized
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts

MAX_TEXTS = 2048

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Plain: TypeAlias = str | list[int]
PlainInput: TypeAlias = str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
"""A text, its tokens, or a list of either; a list of numbers is one text."""


_OF_A_TEXT = frozenset({"messages", "text", "token_ids", "continuations[0]"})


def plain_texts(given: PlainInput, name: str) -> list[Plain]:
    """Return the prompts in a field, each as it was sent.

    Raises:
        RequestError: it mixes numbers with texts, or has too many.
    """
    if isinstance(given, str):
        return [given]
    ids = [each for each in given if isinstance(each, int)]
    if len(ids) == len(given):
        return [ids]
    texts = [each for each in given if not isinstance(each, int)]
    if ids:
        raise RequestError(f"{name} mixes single tokens with texts", param=name)
    if len(texts) > MAX_TEXTS:
        raise RequestError(f"{name} has over {MAX_TEXTS} texts", param=name)
    return texts


def plain_names(texts: Sized, name: str) -> list[str]:
    """Return the name of each prompt of a field, for errors."""
    return [f"{name}[{n}]" for n in range(len(texts))] if len(texts) > 1 else [name]


def check_plain_size(texts: Seq[Plain], most: int, facts: RunnerFacts) -> None:
    """Refuse prompts that are far too long, before they cost time.

    Args:
        texts: the prompts of one request.
        most: the largest total of characters, or of tokens.
        facts: the model's facts.

    Raises:
        PromptTooLong: the total is larger.
    """
    if sum(map(len, texts)) > most:
        raise PromptTooLong(facts.limits.max_sequence_tokens, f"the text is over {most} characters")


def plain_fields(text: Plain) -> dict[str, Any]:
    """Return the field of a runner's request for a prompt."""
    return {"text": text} if isinstance(text, str) else {"token_ids": tuple(text)}


def rename_param(error: RequestError, name: str) -> None:
    """Set the body's field in a runner's error about a prompt."""
    error.param = plain_field(name, error)


def plain_field(name: str, error: RequestError) -> str | None:
    """Return the body's field of a runner's error about the prompt in the field ``name``."""
    return name if error.param in _OF_A_TEXT else error.param
