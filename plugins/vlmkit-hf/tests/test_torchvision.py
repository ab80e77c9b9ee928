"""Image processors of this package equal the torchvision processors of transformers.

``nox -s torchvision`` runs these tests; other sessions skip them.
"""

from typing import Any

import numpy as np
import PIL.Image
import pytest
import transformers

from vlmkit_hf.images.pillow.families import FAMILIES
from vlmkit_hf.images.pillow.processor import processor_class

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

MOST_LEVELS = 2.1  # of 255; bfloat16 and different double rounding can double one
MOST_DIFFERENT = 0.04  # the share of all values; torch rounds filters to 16 bits, Pillow to 22
SIZES = ((64, 48), (40, 88), (301, 203), (1100, 300), (90, 700))
NOT_ALWAYS = {"patch_newline_masks"}  # transformers omits it if there are no patches


def photo(width: int, height: int) -> PIL.Image.Image:
    """Return waves and noise, for which filters differ."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / (3 + 17 * c) + y / (5 + 11 * c)) for c in range(3)], -1)
    noise = np.random.default_rng(width).normal(0, 20, (height, width, 3))
    return PIL.Image.fromarray(np.clip(waves * 90 + 128 + noise, 0, 255).astype(np.uint8))


def both(name: str) -> tuple[Any, Any]:
    ours = processor_class(name)
    assert ours is not None
    return ours(), getattr(transformers, name)()


@pytest.mark.parametrize("name", FAMILIES)
def test_omitted_settings_have_the_defaults_of_transformers(name: str) -> None:
    ours, theirs = both(name)
    known = set(theirs._valid_kwargs_names) - {"do_convert_rgb", "min_pixels", "max_pixels"}

    assert {key: getattr(ours, key, None) for key in known} == {
        key: getattr(theirs, key, None) for key in known
    }
    assert ours.model_input_names == theirs.model_input_names


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
def test_an_image_has_the_arrays_of_transformers(name: str, size: tuple[int, int]) -> None:
    ours, theirs = both(name)
    image = photo(*size)
    compare(theirs(image, return_tensors="pt"), ours(image, return_tensors="np"), theirs)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "PerceptionLMImageProcessor"])
def test_two_images_are_joined_as_in_transformers(name: str) -> None:
    ours, theirs = both(name)
    images = [photo(301, 203), photo(301, 204)]
    compare(theirs(images, return_tensors="pt"), ours(images, return_tensors="np"), theirs)


def compare(wanted: Any, made: Any, processor: Any) -> None:
    assert set(wanted) - NOT_ALWAYS == set(made) - NOT_ALWAYS
    for key in wanted:
        value = wanted[key]
        expected = value.float().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        found = np.asarray(made[key])
        assert found.shape == expected.shape, key
        if "pixel_values" not in key:
            np.testing.assert_array_equal(found, expected, key)
            continue
        level = min(processor.image_std) * 255 if processor.do_normalize else 255
        apart = np.abs(found - expected) * level
        assert apart.max() <= MOST_LEVELS, key
        assert (apart > 0.02).mean() < MOST_DIFFERENT, key
