"""Texts that are no conversation, as several routes take them: one or many, text or tokens."""

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
    """Return the texts of a field, each as it was sent.

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
    """Return what errors call each text of a field."""
    return [f"{name}[{n}]" for n in range(len(texts))] if len(texts) > 1 else [name]


def check_plain_size(texts: Seq[Plain], most: int, facts: RunnerFacts) -> None:
    """Refuse what would only cost time.

    Args:
        texts: of one request.
        most: characters, or tokens, of all of them.
        facts: of the model.

    Raises:
        PromptTooLong: there is more.
    """
    if sum(map(len, texts)) > most:
        raise PromptTooLong(facts.limits.max_sequence_tokens, f"the text is over {most} characters")


def plain_fields(text: Plain) -> dict[str, Any]:
    """Return the field of a runner's request that a text goes into."""
    return {"text": text} if isinstance(text, str) else {"token_ids": tuple(text)}


def blame(error: RequestError, name: str) -> None:
    """Say which field of a body an error is about that a runner raised of a text."""
    if error.param in _OF_A_TEXT:
        error.param = name
