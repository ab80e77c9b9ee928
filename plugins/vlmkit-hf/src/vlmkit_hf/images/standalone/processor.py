"""Does what a family's processor does to a picture, by data and without transformers.

Answers to the names by which :mod:`vlmkit_hf.images.side` asks those of transformers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import PIL.Image

from vlmkit_hf.images.pillow.families import FAMILIES, arrays_of
from vlmkit_hf.images.pillow.views import Plan
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.standalone.families import IMAGES, LAYOUTS, WORDS
from vlmkit_hf.images.standalone.settings import PictureSettings, ProcessorSettings

SETTINGS = frozenset(PictureSettings.__struct_fields__)


class LightImages:
    """An image processor: its settings as attributes, and how many patches a picture has.

    Args:
        name: the class of transformers' own.
        settings: as that has them.

    Raises:
        KeyError: the class is not known.
    """

    def __init__(self, name: str, settings: PictureSettings) -> None:
        self._family = IMAGES[name]
        self._settings = settings
        vars(self).update(_stated(settings))

    def arrays(self, picture: PIL.Image.Image, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a model takes of one picture."""
        pixels = np.asarray(picture.convert("RGB"))
        return arrays_of(self._family, pixels, self._under(options))

    def get_number_of_image_patches(
        self, height: int, width: int, options: Mapping[str, Any]
    ) -> int:
        """Return how many patches, or tiles, a picture of a size has."""
        numbers = self._family.plan(Size(height, width), self._under(options)).numbers
        if "image_grid_thw" in numbers:
            return math.prod(numbers["image_grid_thw"][0])
        return int(numbers["num_patches"][0])

    def _under(self, options: Mapping[str, Any]) -> PictureSettings:
        """Return the settings with those of a call."""
        return settings_under(_stated(self._settings), options)


class PlannedImages(LightImages):
    """One that says what it does to a picture, as those of our own table do."""

    def plan(self, size: Size, options: Mapping[str, Any]) -> Plan:
        """Return how a picture of a size is shown."""
        return self._family.plan(size, self._under(options))


class LightProcessor:
    """A family's processor.

    Args:
        settings: what was written down of transformers' own.

    Raises:
        KeyError: one of its classes is not known.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        self._own, self._images = settings.own, settings.images
        self._write = WORDS[settings.words]
        self._lay_out = LAYOUTS.get(settings.words)
        kind = PlannedImages if settings.pictures in FAMILIES else LightImages
        self.image_processor = kind(settings.pictures, settings.images)
        vars(self).update(_stated(settings.own))  # sizes are told by some

    def prepare_inputs_layout(
        self, images: Sequence[PIL.Image.Image], text: Sequence[str], **_: Any
    ) -> tuple[Sequence[PIL.Image.Image], list[str]]:
        """Return the images, and the texts as they are laid out."""
        if self._lay_out is None:
            return images, list(text)
        return images, [self._lay_out(each, self._own) for each in text]

    def _process_images(
        self, images: Sequence[PIL.Image.Image], **options: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the arrays of one picture, and what is written for it."""
        (picture,) = images
        if self._own.spatial_merge_size is not None and self._own.patch_size is not None:
            options["patch_size"] = self._own.patch_size * self._own.spatial_merge_size
        arrays = self.image_processor.arrays(picture, options)
        return arrays, [self.replace_image_token(arrays, image_idx=0)]

    def replace_image_token(self, arrays: Mapping[str, Any], *, image_idx: int, **_: Any) -> str:
        """Return what is written for the first picture: each is processed on its own."""
        if image_idx:
            raise IndexError(image_idx)
        return self._write(arrays, self._own, self._images)


def settings_under(own: Mapping[str, Any], options: Mapping[str, Any]) -> PictureSettings:
    """Return an image processor's settings with those of a call.

    Raises:
        msgspec.ValidationError: one is out of bounds.
    """
    asked = {k: v for k, v in options.items() if k in SETTINGS and v is not None}
    return msgspec.convert({**own, **asked}, PictureSettings)


def _stated(settings: msgspec.Struct) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(settings).items() if v is not None}
