"""Builds an image processor class of transformers from a family's data.

transformers' base class reads settings from files and calls, and writes them back.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypedDict

import numpy as np
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_base import BatchFeature
from transformers.processing_utils import ImagesKwargs

from vlmkit_hf.images.pillow.families import FAMILIES, Family, arrays_of
from vlmkit_hf.images.pillow.pixels import Pixels
from vlmkit_hf.images.pillow.views import Plan
from vlmkit_hf.images.size import Size

_COMMON = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True}


class PillowProcessor(PilBackend):
    """The image processor of one family; a subclass sets the family."""

    family: Family

    def __init__(self, **settings: Any) -> None:
        family = self.family
        named = {family.other_names.get(name, name): value for name, value in settings.items()}
        wrong = [name for name, value in family.mistaken.items() if named.get(name) == value]
        super().__init__(**{name: value for name, value in named.items() if name not in wrong})

    def plan(self, size: Size, options: Mapping[str, Any]) -> Plan:
        """Return the plan for an image of a given size.

        Args:
            size: the size of the upright image.
            options: the arguments of the call; the processor's settings are their defaults.
        """
        given = {name: options.get(name) for name in self._valid_kwargs_names}
        own = {n: getattr(self, n, None) if v is None else v for n, v in given.items()}
        return self.family.plan(size, SimpleNamespace(**self._standardize_kwargs(**own)))

    def _validate_preprocess_kwargs(self, **kwargs: Any) -> None:  # type: ignore[override]
        """Check the settings that all families share; each family checks its sizes itself."""
        super()._validate_preprocess_kwargs(**{**kwargs, "do_resize": False})

    def _preprocess(  # type: ignore[override]
        self, images: Sequence[Pixels], **kwargs: Any
    ) -> BatchFeature:
        """Return the arrays of images ``[3, height, width]``."""
        settings = SimpleNamespace(**kwargs)
        made = [arrays_of(self.family, np.moveaxis(image, 0, -1), settings) for image in images]
        if self.family.counts_patches in made[0]:
            _offset_patches(made, self.family.counts_patches)
        for name, fill in self.family.fills.items():
            _pad_tiles(made, name, fill)
        joined = {
            name: _concatenated(
                [arrays[name] for arrays in made if name in arrays],
                self.family.axis if name == "pixel_values" else 0,
            )
            for name in dict.fromkeys(name for arrays in made for name in arrays)
        }
        lists = [name for name, value in joined.items() if name in self.family.lists]
        return BatchFeature(
            joined, tensor_type=kwargs.get("return_tensors"), skip_tensor_conversion=lists
        )


def processor_class(name: str) -> type[PillowProcessor] | None:
    """Return the image processor class of a name in a checkpoint; None for other families.

    Args:
        name: such as ``Llama4ImageProcessor``; may end with ``Fast``.
    """
    name = name.removesuffix("Fast")
    if name not in FAMILIES:
        return None
    family = FAMILIES[name]
    own = dict.fromkeys(family.settings.keys() - ImagesKwargs.__annotations__.keys(), Any)
    known = TypedDict("Settings", {**ImagesKwargs.__annotations__, **own}, total=False)  # type: ignore[misc]
    attributes = {
        **_COMMON,
        **family.settings,
        "family": family,
        "valid_kwargs": known,
        "model_input_names": list(family.input_names),
    }
    return type(name, (PillowProcessor,), attributes)


def _offset_patches(made: Sequence[dict[str, Any]], name: str) -> None:
    """Offset patch numbers by the patches of preceding images; negative numbers mean no patch."""
    before = 0
    for arrays in made:
        numbers = arrays[name]
        arrays[name] = np.where(numbers >= 0, numbers + before, numbers)
        before += arrays["pixel_values"].shape[0] * arrays["pixel_values"].shape[1]


def _pad_tiles(made: Sequence[dict[str, Any]], name: str, fill: float) -> None:
    """Pad the second axis, of tiles, to the largest number of tiles."""
    most = max(arrays[name].shape[1] for arrays in made)
    for arrays in made:
        own = arrays[name]
        more = [(0, 0), (0, most - own.shape[1]), *([(0, 0)] * (own.ndim - 2))]
        arrays[name] = np.pad(own, more, constant_values=fill)


def _concatenated(parts: Sequence[Any], axis: int) -> Any:
    """Join the arrays of several images."""
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    if axis == 0 and len({part.shape[1:] for part in parts}) > 1:  # one entry for each image
        ragged = np.empty(len(parts), object)
        ragged[:] = [part[0] for part in parts]
        return ragged
    return np.concatenate(parts, axis)
