"""The tokens of a prompt, for callers that count tokens and generate nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class PromptMedium:
    """The position of an image or another medium among the tokens of a prompt.

    Attributes:
        kind: the kind of medium, such as ``image``.
        start: position of its first token.
        stop: position after its last token. Some model families put markers inside, so the range
            may be longer than ``num_tokens``.
        num_tokens: number of tokens that its features replace.
        digest: sha256 over content, options and processor; empty in a light prompt.
        size: size of an upright image; None for other media.
        used_size: size of the resized image that the model receives; None if the processor does
            not say.
        page: page number of an image from a document, from 1; None for other media.
    """

    kind: str
    start: int
    stop: int
    num_tokens: int
    digest: bytes = b""
    size: Size | None = None
    used_size: Size | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt.

    Attributes:
        token_ids: all token ids, with every image expanded to its placeholder tokens.
        media: the media among the tokens, in order.
    """

    token_ids: tuple[int, ...]
    media: tuple[PromptMedium, ...] = ()

    @property
    def texts(self) -> list[tuple[int, int]]:
        """The ranges of text whose tokens can be scored, as ``(start, stop)`` in order."""
        media = ((medium.start, medium.stop) for medium in self.media)
        return list(texts_between(len(self.token_ids), media))

    @property
    def images(self) -> tuple[PromptMedium, ...]:
        """The media that are images."""
        return tuple(medium for medium in self.media if medium.kind == "image")

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """Number of placeholder tokens of each image, in order."""
        return tuple(image.num_tokens for image in self.images)


def texts_between(num_tokens: int, media: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of text in a prompt, without its first token, which nothing predicts.

    Args:
        num_tokens: number of tokens of the prompt.
        media: the ranges of media, in order.
    """
    start = 1
    for first, stop in (*media, (num_tokens, num_tokens)):
        if start < first:
            yield start, first
        start = max(start, stop)
