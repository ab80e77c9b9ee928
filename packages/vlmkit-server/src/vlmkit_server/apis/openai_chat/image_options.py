"""The fields that set how large images are shown: those of a body, and those of each image.

An image's own fields override those of the body.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.tokenizer import Option
from vlmkit.types.image_options import Detail, ImageOptions
from vlmkit_server.apis.openai_chat import wire

DETAIL: Option = "image_detail"
DETAIL_FIELD = "messages.content.image_url.detail"

_DETAILS: dict[str | None, Detail] = {"low": "low", "high": "high", "original": "high"}
"""All values except ``auto``; no image is shown larger than the model supports."""


class ImageSizeFields(Protocol):
    """A body with fields for the size of images."""

    @property
    def max_image_tokens(self) -> int | None:
        """The largest number of tokens per image."""
        ...

    @property
    def mm_processor_kwargs(self) -> dict[str, Any] | None:
        """Limits by the parameter names of the model's image processor."""
        ...


def image_options(body: ImageSizeFields) -> ImageOptions:
    """Return the options of a body for images that set none themselves."""
    return ImageOptions(max_tokens=body.max_image_tokens, processor=body.mm_processor_kwargs or {})


def options_of(image: wire.ImageUrl | wire.NamedFile, common: ImageOptions) -> ImageOptions:
    """Return the options of one image.

    Args:
        image: the image, or the file that it is in.
        common: the options of the body.
    """
    if image.detail is None and image.max_image_tokens is None:
        return common
    return ImageOptions(
        detail=_DETAILS.get(image.detail, "auto"),
        max_tokens=image.max_image_tokens or common.max_tokens,
        processor=common.processor,
    )


def ignored_details(
    messages: Iterable[wire.ChatMessage], facts: RunnerFacts, name: str = DETAIL_FIELD
) -> frozenset[str]:
    """Return the name of the detail field if it is set and the model ignores it."""
    if DETAIL in facts.options:
        return frozenset()
    shown = (
        part.image if isinstance(part, wire.ImagePart) else part.file
        for message in messages
        if isinstance(message.content, list)
        for part in message.content
        if isinstance(part, wire.ImagePart | wire.FilePart)
    )
    has_detail = any(image.detail not in (None, "", "auto") for image in shown)
    return frozenset({name}) if has_detail else frozenset()
