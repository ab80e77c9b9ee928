"""Separate layout and image text for processors of transformers with one call for both.

The image side needs a text's layout and an image's text separately. Each class here precedes the
family's own class among the bases. The check at load compares with the family's own call.
"""

import re
from collections.abc import Mapping
from typing import Any


class Idefics2Parts:
    """Images stand between two tokens that neighbours share; a space separates words from them."""

    @property
    def spaced_after(self) -> str:
        """The token that needs a space before a letter."""
        token: str = self.fake_image_token  # type: ignore[attr-defined]
        return token

    def prepare_inputs_layout(
        self, images: Any = None, text: list[str] | None = None, **others: Any
    ) -> Any:
        """Put the tokens around each image."""
        images, text, *rest = super().prepare_inputs_layout(  # type: ignore[misc]
            images=images, text=text, **others
        )
        around, image = self.spaced_after, self.image_token  # type: ignore[attr-defined]
        laid_out = text and [
            sample.replace(image, around + image + around).replace(around * 2, around)
            for sample in text
        ]
        return images, laid_out, *rest

    def replace_image_token(self, *_: Any, **__: Any) -> str:
        """Return an image's text; for a split image, that of four quarters and the whole."""
        image: str = self.image_token * self.image_seq_len  # type: ignore[attr-defined]
        is_split = self.image_processor.do_image_splitting  # type: ignore[attr-defined]
        return self.spaced_after.join([image] * (5 if is_split else 1))


class GotOcr2Parts:
    """Supplies the options that the family's layout expects from its call."""

    def prepare_inputs_layout(self, **options: Any) -> Any:
        """Return images and texts unchanged, unless the call has options."""
        if options.get("images") is None:  # without images, the family's own call does not use this
            return None, options["text"], None, None
        complete = {"format": False, "images_kwargs": {}} | options
        return super().prepare_inputs_layout(**complete)  # type: ignore[misc]


class HunYuanVLParts:
    """The family's call refuses an image without the two tokens that templates write around it."""

    @property
    def framed_image(self) -> str:
        """The placeholder with the tokens around it."""
        start, image, end = (
            getattr(self, name) for name in ("image_start_token", "image_token", "image_end_token")
        )
        return f"{start}{image}{end}"


PARTS: Mapping[str, type[Any]] = {
    "Idefics2Processor": Idefics2Parts,
    "GotOcr2Processor": GotOcr2Parts,
    "HunYuanVLProcessor": HunYuanVLParts,
}
"""By the name of the family's processor."""


def spaced(text: str, token: str, follows: str = "") -> str:
    """Return a text with a space after each occurrence of a token, unless markup follows.

    Args:
        text: a template's or a processor's text.
        token: see :attr:`Idefics2Parts.spaced_after`.
        follows: the text that comes next.
    """
    if not token:
        return text
    result = re.sub(rf"{re.escape(token)}(?=[^\s<])", f"{token} ", text)
    is_apart = not follows or follows[0].isspace() or follows[0] == "<"
    return result if is_apart or not result.endswith(token) else f"{result} "
