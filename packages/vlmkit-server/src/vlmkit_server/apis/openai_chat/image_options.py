"""How large a body wants its images shown: fields of the body, and of each image over them."""

from collections.abc import Iterable
from typing import Any, Protocol

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.tokenizer import Option
from vlmkit.types.image_options import Detail, ImageOptions
from vlmkit_server.apis.openai_chat import wire

DETAIL: Option = "image_detail"
DETAIL_FIELD = "messages.content.image_url.detail"

_DETAILS: dict[str | None, Detail] = {"low": "low", "high": "high", "original": "high"}
"""All but ``auto``; no picture is ever shown larger than the model was made for."""


class ImageSizeFields(Protocol):
    """A body that says how large images are shown."""

    @property
    def max_image_tokens(self) -> int | None:
        """Tokens of each image, at most."""
        ...

    @property
    def mm_processor_kwargs(self) -> dict[str, Any] | None:
        """Limits by the names of the model's own processor."""
        ...


def image_options(body: ImageSizeFields) -> ImageOptions:
    """Return how a body wants its images shown that say nothing themselves."""
    return ImageOptions(max_tokens=body.max_image_tokens, processor=body.mm_processor_kwargs or {})


def options_of(image: wire.ImageUrl | wire.NamedFile, common: ImageOptions) -> ImageOptions:
    """Return how one image is shown.

    Args:
        image: what it, or the file that it is in, says itself.
        common: what the body says of all.
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
    """Return the name of the field that tells a detail, if one is told to a model without any."""
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
