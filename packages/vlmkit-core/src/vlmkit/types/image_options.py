"""How large an image is shown to a model, where a request asks for more than the model's own way.

Says what is wanted. How a picture is made smaller is the business of the model's own processor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vlmkit.errors import RequestError

Detail = Literal["auto", "low", "high"]
"""How closely to look, without numbers."""

MAX_PROCESSOR_OPTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """How large one image is shown.

    Attributes:
        detail: how closely to look; ``pipeline.image_tokens`` says what that is in tokens. A wish:
            a model that shows all images in one size has one detail.
        max_tokens: placeholder tokens that the image may take; it is refused where the model's
            processor cannot make it so small.
        wanted_tokens: the same as a wish: what cannot be made so small is made as small as it can.
        processor: limits by the names that the model's own processor has for them, such as
            ``max_pixels``; never over what the model was made for.
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
        """How many tokens the image is to take at most, wish or bound; None says nothing."""
        return min((n for n in (self.max_tokens, self.wanted_tokens) if n), default=None)


PLAIN_IMAGE = ImageOptions()
"""The model's own way."""
