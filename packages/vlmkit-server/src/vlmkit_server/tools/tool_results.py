"""Keeps what tools return within the bounds of a request; what does not fit is named in its place.

A tool's result is no client's doing, so nothing of it fails the request.
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import replace

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.message import ImagePart, Message, Part, TextPart, images_of, parts_of
from vlmkit_server.settings.server import ServerSettings

NO_ROOM = "[left out: there is no room for it]"
NO_IMAGES = "[an image is left out: this model takes none]"


def fitted(
    results: Seq[Message], said: Seq[Message], facts: RunnerFacts, settings: ServerSettings
) -> list[Message]:
    """Return results of tools, cut to what a conversation has room for.

    Args:
        results: turns of tools.
        said: the conversation before them.
        facts: what the model takes.
        settings: bounds of one request.
    """
    room = _Room(said, facts, settings)
    return [replace(turn, parts=tuple(room.taken(turn.parts))) for turn in results]


class _Room:
    """What is left for a conversation."""

    def __init__(self, said: Seq[Message], facts: RunnerFacts, settings: ServerSettings) -> None:
        images = list(images_of(said))
        texts = (part.text for part in parts_of(said) if isinstance(part, TextPart))
        self._takes_images = facts.takes_images
        self._num_images = facts.bounds.max_images - len(images)
        self._num_pixels = settings.max_request_pixels - sum(
            image.source_size[0] * image.source_size[1] for image in images
        )
        self._num_chars = settings.max_text_chars - sum(map(len, texts))

    def taken(self, parts: Seq[Part]) -> Iterator[Part]:
        """Yield the parts that fit, and a few words for others."""
        for part in parts:
            if isinstance(part, ImagePart):
                yield self._image(part)
            elif isinstance(part, TextPart):
                kept = part.text[: max(0, self._num_chars)]
                self._num_chars -= len(kept)
                yield TextPart(kept if len(kept) == len(part.text) else f"{kept}{NO_ROOM}")

    def _image(self, part: ImagePart) -> Part:
        if not self._takes_images:
            return TextPart(NO_IMAGES)
        width, height = part.image.source_size
        if self._num_images < 1 or self._num_pixels < width * height:
            return TextPart(NO_ROOM)
        self._num_images -= 1
        self._num_pixels -= width * height
        return part
