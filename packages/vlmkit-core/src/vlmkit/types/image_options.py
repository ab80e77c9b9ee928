"""Options of a request for the size in which a model sees an image.

They state a goal; the model's own processor resizes the image.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vlmkit.errors import RequestError

Detail = Literal["auto", "low", "high"]
"""The level of detail in which a model sees an image."""

MAX_PROCESSOR_OPTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The size in which a model sees one image.

    Attributes:
        detail: the level of detail; ``pipeline.image_tokens`` sets its number of tokens. It has no
            effect on a model that sees all images in one size.
        max_tokens: maximum number of placeholder tokens of the image. The image is refused if the
            model's processor cannot make it so small.
        wanted_tokens: desired maximum number of placeholder tokens. If the processor cannot reach
            it, it makes the image as small as it can.
        processor: limits by the names of the model's own processor, such as ``max_pixels``; never
            above what the model was trained for.
    """

    detail: Detail = "auto"
    max_tokens: int | None = None
    wanted_tokens: int | None = None
    processor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.detail not in get_args(Detail):
            known = ", ".join(get_args(Detail))
            raise RequestError(f"an image's detail must be one of {known}", param="detail")
        for name in ("max_tokens", "wanted_tokens"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise RequestError(f"an image's {name} must be a number from 1", param=name)
        if len(self.processor) > MAX_PROCESSOR_OPTIONS:
            raise RequestError(
                f"an image's processor options must be up to {MAX_PROCESSOR_OPTIONS} by name",
                param="processor",
            )

    @property
    def most_tokens(self) -> int | None:
        """The smaller of ``max_tokens`` and ``wanted_tokens``; None if neither is set."""
        return min((n for n in (self.max_tokens, self.wanted_tokens) if n), default=None)


PLAIN_IMAGE = ImageOptions()
"""The model's own size."""
