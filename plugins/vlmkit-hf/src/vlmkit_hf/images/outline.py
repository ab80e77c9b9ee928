"""The tokens of an image of a given size, without its pixels.

They depend on sizes and counts among the processor's arrays. A family's sizing computes those, or
they are the same for all images. The first use checks that against real calls.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import PIL.Image

from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing

log = logging.getLogger(__name__)

Process = Callable[[PIL.Image.Image, Limits], tuple[Mapping[str, Any], str]]
"""Returns the arrays and the text of one image under some limits."""

TRIED_SIZES = (Size(48, 64), Size(88, 40), Size(300, 1100), Size(1100, 300), Size(700, 900))
FEW_NUMBERS = 64  # of an array with sizes or counts; larger arrays are pixels


class Outlines:
    """Writes the text that a processor would write for an image of a given size.

    Args:
        processor: the family's processor.
        options: the arguments of its image processor.
        sizing: computes sizes and counts; None if they are the same for all images.
        process: calls the processor on one image.
    """

    def __init__(
        self,
        processor: Any,
        options: Mapping[str, Any],
        sizing: Sizing | None,
        process: Process,
    ) -> None:
        self._processor = processor
        self._options = options
        self._sizing = sizing
        self._process = process

    def written(self, size: Size, limits: Limits) -> str:
        """Return an image's text; from a blank image if the size alone does not determine it."""
        if self._are_computable:
            return self._computed(size, limits)
        return self._process(_blank(size), limits)[1]

    def _computed(self, size: Size, limits: Limits) -> str:
        arrays = self._sizing.outline(size, limits) if self._sizing else self._sample(size)
        called_with = {**self._options, **limits}
        written: str = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return written

    def _sample(self, size: Size) -> Mapping[str, Any]:
        """Return the arrays that all images share, and the size if the arrays include it."""
        arrays = dict(self._shapes)
        if "image_sizes" in arrays:
            arrays["image_sizes"] = np.array([size])
        return arrays

    @cached_property
    def _shapes(self) -> Mapping[str, Any]:
        """The arrays of one image; pixels take no memory."""
        arrays, _ = self._process(_blank(TRIED_SIZES[0]), {})
        return {name: _shape(np.asarray(array)) for name, array in arrays.items()}

    @cached_property
    def _are_computable(self) -> bool:
        """Whether computed texts equal the processor's own for some sizes."""
        if self._may_crop:
            return False
        try:
            return all(
                self._computed(size, {}) == self._process(_blank(size), {})[1]
                for size in TRIED_SIZES
            )
        except MemoryError:
            raise
        except Exception:  # a processor may raise anything
            log.debug("tokens of images cannot be computed from their sizes", exc_info=True)
            return False

    @property
    def _may_crop(self) -> bool:
        """Whether images are cropped by rules that the tried sizes may not trigger."""
        own = getattr(self._processor.image_processor, "do_pan_and_scan", False)
        asked = self._options.get("do_pan_and_scan")
        return bool(own if asked is None else asked)


def _blank(size: Size) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (size.width, size.height), (120, 130, 140))


def _shape(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.size <= FEW_NUMBERS:
        return array
    return np.broadcast_to(array.dtype.type(0), array.shape)
