"""What the detail of an image is in tokens: from words to numbers, all that tokenizers look at.

Runs where requests are read. Knows no family of models.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message


def sized(messages: Seq[Message], tokens: ImageTokens) -> Seq[Message]:
    """Return a conversation whose images have numbers in place of a detail."""
    return [_message(message, tokens) for message in messages]


def _message(message: Message, tokens: ImageTokens) -> Message:
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message
    parts = tuple(
        replace(part, options=_options(part.options, tokens))
        if isinstance(part, ImagePart)
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


def _options(asked: ImageOptions, tokens: ImageTokens) -> ImageOptions:
    """Return what is asked for; of two wishes the smaller counts."""
    bound: int | None = getattr(tokens, asked.detail)
    if bound is None and asked.detail == "auto":
        return asked
    wanted = min((n for n in (bound, asked.wanted_tokens) if n), default=None)
    return replace(asked, detail="auto", wanted_tokens=wanted)
