"""Features equal those of transformers' towers, on images that are prepared as the library does.

The library keeps the shape of an image, and fills what is left with black. The processors of
transformers stretch images to their grid. So the reference gets images that fill the grid already,
and its processor has nothing to do. A second comparison measures what the difference makes.
"""

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pytest
import torch

import zoo
from parity import runner
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit_llama.projector import Projector

pytestmark = pytest.mark.torch

PartsOf = Callable[[str], Any]
Features = np.ndarray[Any, Any]
BOUND, RARE_BOUND = 5e-3, 6e-2
"""The largest difference, relative to the features: GELU is looked up by 16 bits, and pixels of a
resized image may differ by one of 255. The second one is for a tenth of the images: for some sizes,
the library's filter begins one pixel later than that of Pillow, by its other rounding."""

TOKEN = 28  # pixels of a side
QWEN = {"size": {"shortest_edge": TOKEN**2, "longest_edge": 4096 * TOKEN**2}}
INPUTS = ("pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw")


class Case(NamedTuple):
    """How a family of files gets images.

    Attributes:
        limits: settings of the processor of transformers.
        filter: of the library, to resize images.
        side: of a square that each image fills; None if the grid depends on the image.
        has_breaks: whether the library adds a row of features after each row of the grid.
        is_stretched: whether the processor of transformers changes the shape of images.
    """

    limits: Mapping[str, Any] = MappingProxyType({})
    filter: Any = PIL.Image.Resampling.BICUBIC
    side: int | None = None
    has_breaks: bool = False
    is_stretched: bool = True


CASES = {
    "gemma3": Case(filter=PIL.Image.Resampling.BILINEAR, side=56),
    "mistral3": Case({"size": {"longest_edge": 1540}}, has_breaks=True),
    "smolvlm": Case(is_stretched=False),  # it has the preprocessing of transformers
    "qwen2_vl": Case(QWEN),
    "qwen2_5_vl": Case(QWEN),
    "qwen3_vl": Case(QWEN),
}
FILES = ("gemma3", "mistral3", "smolvlm")
"""Families whose files need no folder."""


def drawn(num: int) -> list[Any]:
    """Return images of several shapes."""
    dice = random.Random(num)
    sizes = [(dice.randrange(60, 200), dice.randrange(60, 200)) for _ in range(num)]
    return [zoo.picture(number, *size) for number, size in enumerate(sizes)]


def reference(model: Any, family: str, image: Any, limits: Mapping[str, Any]) -> Features:
    """Return what the tower of transformers makes of an image: ``[rows, columns]``."""
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    asked = [{"role": "user", "content": content}]
    inputs = zoo.reference(family, asked, [image], return_tensors="pt", limits=limits)
    with torch.no_grad():
        made = model.model.get_image_features(
            **{key: value for key, value in inputs.items() if key in INPUTS}
        )
    whole = [made.pooler_output, *(getattr(made, "deepstack_features", None) or ())]
    parts = [torch.cat(list(each)) if isinstance(each, list | tuple) else each for each in whole]
    rows = [each.reshape(-1, each.shape[-1]) for each in parts]
    found: Features = torch.cat(rows, 1).numpy()
    return found


def ours(made: Any, encoder: Any, image: Any) -> Features:
    """Return the features of the encoder."""
    shown = (ImagePart(Image.open(image)), TextPart("What?"))
    prompt = made.tokenizer.prompt([Message("user", shown)])
    (features,) = encoder.encode(prompt.media)
    found: Features = np.asarray(features.embeddings)
    return found


def grid_of(case: Case, num_rows: int, image: Any) -> tuple[int, int]:
    """Return the columns and rows of tokens whose shape is nearest to that of an image."""
    num = num_rows + case.has_breaks
    grids = [(num // rows - case.has_breaks, rows) for rows in range(1, num) if num % rows == 0]
    width, height = image.size

    def distance(grid: tuple[int, int]) -> float:
        return abs(math.log(grid[0] * height / (grid[1] * width)))

    return min((grid for grid in grids if grid[0] > 0), key=distance)


def fitted(image: Any, size: tuple[int, int], resample: Any) -> Any:
    """Return an image in the middle of a black one, which it fills in one direction."""
    sides = [np.float32(side) for side in image.size]
    scale = min(np.float32(new) / old for new, old in zip(size, sides, strict=True))
    inner = [min(new, math.ceil(old * scale)) for new, old in zip(size, sides, strict=True)]
    whole = PIL.Image.new("RGB", size)
    place = [(new - own) // 2 for new, own in zip(size, inner, strict=True)]
    whole.paste(image.resize(inner, resample), tuple(place))
    return whole


def relative(found: Features, wanted: Features) -> float:
    """Return the root of the mean square of a difference, relative to that of the features."""
    assert found.shape == wanted.shape
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


def differences(family: str, made: Any, num: int) -> tuple[list[float], list[float]]:
    """Return the differences of images that fill the grid, and of the same without that."""
    case = CASES[family]
    model = runner.load_reference(family, made.folder / "plain" / family)
    encoder = made.encoder()
    like, unlike = [], []
    for image in drawn(num):
        found = ours(made, encoder, image)
        given = image
        if case.side is not None:
            given = fitted(image, (case.side, case.side), case.filter)
        elif case.is_stretched:
            columns, rows = grid_of(case, len(found), image)
            given = fitted(image, (columns * TOKEN, rows * TOKEN), case.filter)
            if case.has_breaks:
                places = np.arange(len(found) + 1).reshape(rows, columns + 1)[:, :-1]
                found = found[places.reshape(-1)]
        like.append(relative(found, reference(model, family, given, case.limits)))
        wanted = reference(model, family, image, case.limits)
        if wanted.shape == found.shape:
            unlike.append(relative(found, wanted))
    encoder.close()
    shown = [f"{min(each):.1e} to {max(each):.1e}" for each in (like, unlike) if each]
    print(f"{family}: {' / '.join(shown)}; another grid: {num - len(unlike)} of {num}")
    return like, unlike


def check(like: list[float]) -> None:
    """Require the bounds."""
    assert max(like) < RARE_BOUND
    assert sum(each > BOUND for each in like) <= len(like) // 10


@pytest.mark.parametrize("family", FILES)
def test_features_of_drawn_images_are_those_of_transformers(family: str, parts: PartsOf) -> None:
    like, unlike = differences(family, parts(family), 4)
    check(like)
    assert (max(unlike) > 10 * BOUND) is CASES[family].is_stretched, "preprocessing"


def test_rows_that_the_library_computes_from_stale_memory_are_replaced(
    parts: PartsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It multiplies unwritten memory by zero, which gives NaN where that holds no number."""
    made, image = parts("mistral3"), zoo.picture(0, 120, 90)
    encoder, real = made.encoder(), Projector._encoded
    expected = ours(made, encoder, image)
    is_break = (expected == expected[4]).all(1)
    assert 1 < is_break.sum() < len(expected)

    def stale(self: Projector, *arguments: Any) -> Features:
        rows = real(self, *arguments)
        rows[is_break] = np.nan
        return rows

    monkeypatch.setattr(Projector, "_encoded", stale)
    np.testing.assert_array_equal(ours(made, encoder, image), expected)
    encoder.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_features_of_thirty_drawn_images_are_those_of_transformers(
    family: str, parts: PartsOf
) -> None:
    like, _ = differences(family, parts(family), 30)
    check(like)


@pytest.mark.slow
def test_the_library_places_the_class_token_of_llava_last(parts: PartsOf) -> None:
    """So each patch has the position of the one before, and the last row is the class token's."""
    made, image = parts("llava"), zoo.picture(3, 28, 28)
    model = runner.load_reference("llava", made.folder / "plain" / "llava")
    encoder = made.encoder()
    found = ours(made, encoder, image)
    encoder.close()
    assert relative(found, reference(model, "llava", image, {})) > 1
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    inputs = zoo.reference(
        "llava", [{"role": "user", "content": content}], [image], return_tensors="pt"
    )
    tower = model.model.vision_tower
    with torch.no_grad():
        positions = tower.embeddings.position_embedding.weight
        positions.copy_(positions.roll(1, 0))
        states = tower(inputs["pixel_values"], output_hidden_states=True).hidden_states[-2][0]
        rows = model.model.multi_modal_projector(torch.cat([states[2:], states[:1]])[None])
    assert relative(found, rows[0].numpy()) < BOUND
