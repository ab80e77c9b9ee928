"""What a processor writes for a picture of which only the size is known.

The words depend on sizes and counts among the arrays, which a family's limits tell, or which are
the same for all pictures. Whether that is so is tried once, when it is first of use.
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
"""Returns the arrays and the words of one picture under some limits."""

TRIED = (Size(48, 64), Size(88, 40), Size(300, 1100), Size(1100, 300), Size(700, 900))
FEW_NUMBERS = 64  # of an array that may tell sizes; larger ones are of pixels


class Outlines:
    """Writes of pictures what a processor would write.

    Args:
        processor: the family's processor.
        options: what its image processor is called with.
        sizing: its limits; None where all pictures are shown in one way.
        process: asks it about a picture.
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
        """Return the words; where they cannot be told from a size, those of a blank picture."""
        if self._are_known:
            return self._outlined(size, limits)
        return self._process(_blank(size), limits)[1]

    def _outlined(self, size: Size, limits: Limits) -> str:
        arrays = self._sizing.outline(size, limits) if self._sizing else self._sample(size)
        called_with = {**self._options, **limits}
        written: str = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return written

    def _sample(self, size: Size) -> Mapping[str, Any]:
        """Return arrays such as every picture has, and its size where that is among them."""
        arrays = dict(self._shapes)
        if "image_sizes" in arrays:
            arrays["image_sizes"] = np.array([size])
        return arrays

    @cached_property
    def _shapes(self) -> Mapping[str, Any]:
        """The arrays of one picture, those of pixels without memory."""
        arrays, _ = self._process(_blank(TRIED[0]), {})
        return {name: _shape(np.asarray(array)) for name, array in arrays.items()}

    @cached_property
    def _are_known(self) -> bool:
        """Whether the words of some pictures are those that the processor writes."""
        if self._crops_some:
            return False
        try:
            return all(
                self._outlined(size, {}) == self._process(_blank(size), {})[1] for size in TRIED
            )
        except MemoryError:
            raise
        except Exception:  # a processor may raise anything
            log.debug("words of images cannot be told from their sizes", exc_info=True)
            return False

    @property
    def _crops_some(self) -> bool:
        """Whether pictures are cut by rules that those which are tried may not show."""
        own = getattr(self._processor.image_processor, "do_pan_and_scan", False)
        asked = self._options.get("do_pan_and_scan")
        return bool(own if asked is None else asked)


def _blank(size: Size) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (size.width, size.height), (120, 130, 140))


def _shape(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.size <= FEW_NUMBERS:
        return array
    return np.broadcast_to(array.dtype.type(0), array.shape)
