"""A family's processor from saved settings, without transformers.

Its methods have the names of transformers' own, which :mod:`vlmkit_hf.images.side` calls.
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
from vlmkit_hf.images.standalone.families import IMAGES, LAYOUTS, WRITERS
from vlmkit_hf.images.standalone.settings import ImageSettings, ProcessorSettings

SETTINGS = frozenset(ImageSettings.__struct_fields__)


class StandaloneImageProcessor:
    """An image processor with its settings as attributes.

    Args:
        name: the class name of transformers' own.
        settings: the settings of that one.

    Raises:
        KeyError: the class is not supported.
    """

    def __init__(self, name: str, settings: ImageSettings) -> None:
        self._family = IMAGES[name]
        self._settings = settings
        vars(self).update(_stated(settings))

    def arrays(self, picture: PIL.Image.Image, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of one image."""
        pixels = np.asarray(picture.convert("RGB"))
        return arrays_of(self._family, pixels, self._under(options))

    def get_number_of_image_patches(
        self, height: int, width: int, options: Mapping[str, Any]
    ) -> int:
        """Return the number of patches or tiles of an image of a given size."""
        numbers = self._family.plan(Size(height, width), self._under(options)).numbers
        if "image_grid_thw" in numbers:
            return math.prod(numbers["image_grid_thw"][0])
        return int(numbers["num_patches"][0])

    def _under(self, options: Mapping[str, Any]) -> ImageSettings:
        """Return the settings, overridden by those of a call."""
        return settings_under(_stated(self._settings), options)


class PlannedImageProcessor(StandaloneImageProcessor):
    """An image processor that also returns its plan, as :mod:`vlmkit_hf.images.pillow` does."""

    def plan(self, size: Size, options: Mapping[str, Any]) -> Plan:
        """Return the plan for an image of a given size."""
        return self._family.plan(size, self._under(options))


class StandaloneProcessor:
    """A family's processor.

    Args:
        settings: the saved settings of transformers' own.

    Raises:
        KeyError: one of its classes is not supported.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        self._own, self._images = settings.own, settings.images
        self._write = WRITERS[settings.words]
        self._lay_out = LAYOUTS.get(settings.words)
        kind = PlannedImageProcessor if settings.pictures in FAMILIES else StandaloneImageProcessor
        self.image_processor = kind(settings.pictures, settings.images)
        vars(self).update(_stated(settings.own))  # the sizing reads some of them

    def prepare_inputs_layout(
        self, images: Sequence[PIL.Image.Image], text: Sequence[str], **_: Any
    ) -> tuple[Sequence[PIL.Image.Image], list[str]]:
        """Return the images, and the texts with the family's layout."""
        if self._lay_out is None:
            return images, list(text)
        return images, [self._lay_out(each, self._own) for each in text]

    def _process_images(
        self, images: Sequence[PIL.Image.Image], **options: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the arrays and the text of one image."""
        (picture,) = images
        if self._own.spatial_merge_size is not None and self._own.patch_size is not None:
            options["patch_size"] = self._own.patch_size * self._own.spatial_merge_size
        arrays = self.image_processor.arrays(picture, options)
        return arrays, [self.replace_image_token(arrays, image_idx=0)]

    def replace_image_token(self, arrays: Mapping[str, Any], *, image_idx: int, **_: Any) -> str:
        """Return the text of the only image: each is processed separately."""
        if image_idx:
            raise IndexError(image_idx)
        return self._write(arrays, self._own, self._images)


def settings_under(own: Mapping[str, Any], options: Mapping[str, Any]) -> ImageSettings:
    """Return an image processor's settings, overridden by those of a call.

    Raises:
        msgspec.ValidationError: a setting is out of bounds.
    """
    asked = {k: v for k, v in options.items() if k in SETTINGS and v is not None}
    return msgspec.convert({**own, **asked}, ImageSettings)


def _stated(settings: msgspec.Struct) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(settings).items() if v is not None}
