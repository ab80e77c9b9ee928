"""An image processor made of a family's data; transformers sees one of its own.

How settings are read from files, passed in calls and written back is transformers' base class.
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
    """The image processor of one family of the table, which a subclass names."""

    family: Family

    def __init__(self, **settings: Any) -> None:
        family = self.family
        named = {family.other_names.get(name, name): value for name, value in settings.items()}
        wrong = [name for name, value in family.mistaken.items() if named.get(name) == value]
        super().__init__(**{name: value for name, value in named.items() if name not in wrong})

    def plan(self, size: Size, options: Mapping[str, Any]) -> Plan:
        """Return how a picture of a size is shown.

        Args:
            size: of the upright picture.
            options: what the processor is called with; its own settings where they say nothing.
        """
        given = {name: options.get(name) for name in self._valid_kwargs_names}
        own = {n: getattr(self, n, None) if v is None else v for n, v in given.items()}
        return self.family.plan(size, SimpleNamespace(**self._standardize_kwargs(**own)))

    def _validate_preprocess_kwargs(self, **kwargs: Any) -> None:  # type: ignore[override]
        """Check what all families have; sizes are their own business."""
        super()._validate_preprocess_kwargs(**{**kwargs, "do_resize": False})

    def _preprocess(  # type: ignore[override]
        self, images: Sequence[Pixels], **kwargs: Any
    ) -> BatchFeature:
        """Return the arrays of pictures ``[3, height, width]``."""
        settings = SimpleNamespace(**kwargs)
        made = [arrays_of(self.family, np.moveaxis(image, 0, -1), settings) for image in images]
        if self.family.counts_patches in made[0]:
            _count_on(made, self.family.counts_patches)
        for name, fill in self.family.fills.items():
            _fill_up(made, name, fill)
        joined = {
            name: _joined(
                [arrays[name] for arrays in made if name in arrays],
                self.family.axis if name == "pixel_values" else 0,
            )
            for name in dict.fromkeys(name for arrays in made for name in arrays)
        }
        kept = [name for name, value in joined.items() if name in self.family.lists]
        return BatchFeature(
            joined, tensor_type=kwargs.get("return_tensors"), skip_tensor_conversion=kept
        )


def processor_class(name: str) -> type[PillowProcessor] | None:
    """Return the image processor of a name that a checkpoint gives; None for others.

    Args:
        name: such as ``Llama4ImageProcessor``, or with ``Fast`` behind it.
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


def _count_on(made: Sequence[dict[str, Any]], name: str) -> None:
    """Let numbers of patches go on from picture to picture; less than 0 is none."""
    before = 0
    for arrays in made:
        numbers = arrays[name]
        arrays[name] = np.where(numbers >= 0, numbers + before, numbers)
        before += arrays["pixel_values"].shape[0] * arrays["pixel_values"].shape[1]


def _fill_up(made: Sequence[dict[str, Any]], name: str, fill: float) -> None:
    """Let all pictures have as many tiles, on the second axis, as the one that has most."""
    most = max(arrays[name].shape[1] for arrays in made)
    for arrays in made:
        own = arrays[name]
        more = [(0, 0), (0, most - own.shape[1]), *([(0, 0)] * (own.ndim - 2))]
        arrays[name] = np.pad(own, more, constant_values=fill)


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """Join what several pictures have."""
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    if axis == 0 and len({part.shape[1:] for part in parts}) > 1:  # each picture's tiles together
        ragged = np.empty(len(parts), object)
        ragged[:] = [part[0] for part in parts]
        return ragged
    return np.concatenate(parts, axis)
