"""Limits tool results to what a request may contain; a note replaces what does not fit.

The client did not write a tool's result, so a large one never fails the request.
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import replace

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.message import ImagePart, Message, Part, TextPart, images_of, parts_of
from vlmkit_server.settings.server import ServerSettings

NO_ROOM = "[left out: there is no room for it]"
NO_IMAGES = "[an image is left out: this model takes none]"


def fitted(
    results: Seq[Message], conversation: Seq[Message], facts: RunnerFacts, settings: ServerSettings
) -> list[Message]:
    """Return tool results, cut to the conversation's remaining limits.

    Args:
        results: turns of tools.
        conversation: the messages before them.
        facts: the model's facts.
        settings: limits of one request.
    """
    budget = _Budget(conversation, facts, settings)
    return [replace(turn, parts=tuple(budget.limited(turn.parts))) for turn in results]


class _Budget:
    """The remaining limits of a conversation."""

    def __init__(
        self, conversation: Seq[Message], facts: RunnerFacts, settings: ServerSettings
    ) -> None:
        images = list(images_of(conversation))
        texts = (part.text for part in parts_of(conversation) if isinstance(part, TextPart))
        self._takes_images = facts.takes_images
        self._num_images = facts.bounds.max_images - len(images)
        self._num_pixels = settings.max_request_pixels - sum(
            image.source_size[0] * image.source_size[1] for image in images
        )
        self._num_chars = settings.max_text_chars - sum(map(len, texts))

    def limited(self, parts: Seq[Part]) -> Iterator[Part]:
        """Yield the parts that fit, and notes in place of others."""
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
