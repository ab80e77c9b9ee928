"""What a prompt comes to, told to those who only count."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class PromptMedium:
    """Where an image, or another medium, stands among the tokens of a prompt.

    Attributes:
        kind: what it is, such as ``image``.
        start: its first token; families put marks inside, so not each of its tokens is one of
            ``num_tokens``.
        stop: one past its last token.
        num_tokens: tokens whose place its features take.
        digest: sha256 over content, options and processor; empty in a light prompt.
        size: of an upright image; None of other media.
        used_size: of the picture that the model looks at; None where the processor does not say.
        page: the page of a document that an image is, from 1; None of all else.
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
        token_ids: all of them, with every image expanded to its placeholder tokens.
        media: what stands among them, in order.
    """

    token_ids: tuple[int, ...]
    media: tuple[PromptMedium, ...] = ()

    @property
    def texts(self) -> list[tuple[int, int]]:
        """Where text stands whose tokens can be scored: ``start`` and ``stop``, in order."""
        media = ((medium.start, medium.stop) for medium in self.media)
        return list(texts_between(len(self.token_ids), media))

    @property
    def images(self) -> tuple[PromptMedium, ...]:
        """Those media that are images."""
        return tuple(medium for medium in self.media if medium.kind == "image")

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """Placeholder tokens of each image, in order."""
        return tuple(image.num_tokens for image in self.images)


def texts_between(num_tokens: int, media: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield where text stands in a prompt, but for its first token: nothing is before that.

    Args:
        num_tokens: of the prompt.
        media: where media stand, in order.
    """
    start = 1
    for first, stop in (*media, (num_tokens, num_tokens)):
        if start < first:
            yield start, first
        start = max(start, stop)
