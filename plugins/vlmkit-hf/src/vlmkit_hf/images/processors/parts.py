"""Processors of transformers that do in one call what others do in parts: those parts, by family.

What asks them wants a text laid out, and an image's words, apart. Each class here is put before the
family's own, whose call stays as it is: it says at load whether the parts add up to it.
"""

import re
from collections.abc import Mapping
from typing import Any


class Idefics2Parts:
    """Images stand between two tokens, of which neighbours share one; words keep off them."""

    @property
    def spaced_after(self) -> str:
        """The token that no letter may follow at once."""
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
        """Return an image's words; of one that is split, those of four quarters and the whole."""
        image: str = self.image_token * self.image_seq_len  # type: ignore[attr-defined]
        is_split = self.image_processor.do_image_splitting  # type: ignore[attr-defined]
        return self.spaced_after.join([image] * (5 if is_split else 1))


class GotOcr2Parts:
    """Lays out by what its call was told, and may be told nothing."""

    def prepare_inputs_layout(self, **asked: Any) -> Any:
        """Return pictures and texts as they are, if the call says no more."""
        if asked.get("images") is None:  # a question about none: its own call asks none
            return None, asked["text"], None, None
        told = {"format": False, "images_kwargs": {}} | asked
        return super().prepare_inputs_layout(**told)  # type: ignore[misc]


class HunYuanVLParts:
    """Its call refuses an image that does not stand between two tokens, which templates write."""

    @property
    def framed_image(self) -> str:
        """What stands for an image, and what must stand around it."""
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
    """Return a text in which a space parts a token from what comes next, unless that is markup.

    Args:
        text: what a template or a processor wrote.
        token: see :attr:`Idefics2Parts.spaced_after`.
        follows: what stands behind the text.
    """
    if not token:
        return text
    made = re.sub(rf"{re.escape(token)}(?=[^\s<])", f"{token} ", text)
    is_apart = not follows or follows[0].isspace() or follows[0] == "<"
    return made if is_apart or not made.endswith(token) else f"{made} "
