"""The reported tiles of an image are those that the processors of model families make.

The image is a ramp: its red level grows from left to right, its green level from top to bottom. So
the level of each pixel that a processor returns says which point of the image it shows. The same
processor shows a white and a black image, by which its numbers are turned into levels; pixels that
are equal in both are padding.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import zoo
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.shown_image import ShownImage
from vlmkit.types.transform import Transform
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_server.wire.image_transforms import image_transforms

WIDTH, HEIGHT = 180, 120
SHAPES = [(WIDTH, HEIGHT), (HEIGHT, WIDTH), (220, 60)]
Arrays = dict[str, Any]
Pixels = np.ndarray[Any, np.dtype[Any]]


def stacked(arrays: Arrays, name: str = "pixel_values") -> list[Pixels]:
    """Return pictures of which the array has one after the other: ``[..., 3, height, width]``."""
    values = np.asarray(arrays[name], np.float64)
    return [*values.reshape(-1, *values.shape[-3:]).transpose(0, 2, 3, 1)]


def in_patches(arrays: Arrays, sizes: list[tuple[int, int]], side: int) -> list[Pixels]:
    """Return pictures of rows of patches, each of which has its pixels with channels last."""
    pictures = []
    for values, (rows, columns) in zip(
        np.asarray(arrays["pixel_values"], np.float64), sizes, strict=True
    ):
        patches = values[: rows * columns].reshape(rows, columns, side, side, 3)
        pictures.append(patches.swapaxes(1, 2).reshape(rows * side, columns * side, 3))
    return pictures


def lfm2(arrays: Arrays) -> list[Pixels]:
    sizes = [tuple(map(int, each)) for each in arrays["spatial_shapes"]]
    return in_patches(arrays, sizes, 7)


def molmo2(arrays: Arrays) -> list[Pixels]:
    return in_patches(arrays, [(4, 4)] * len(arrays["pixel_values"]), 7)


def minicpm(arrays: Arrays) -> list[Pixels]:
    """Return the pictures of a strip of patches, ``[1, 3, side, side * patches]``."""
    strip = np.asarray(arrays["pixel_values"], np.float64)[0]
    side, pictures, start = strip.shape[1], [], 0
    for rows, columns in arrays["target_sizes"].tolist():
        end = start + rows * columns * side
        patches = strip[:, :, start:end].reshape(3, side, rows, columns, side)
        pictures.append(patches.transpose(2, 1, 3, 4, 0).reshape(rows * side, columns * side, 3))
        start = end
    return pictures


def step3p7(arrays: Arrays) -> list[Pixels]:
    return stacked(arrays, "pixel_values_local") if "pixel_values_local" in arrays else []


def phi4(arrays: Arrays) -> list[Pixels]:
    return stacked(arrays, "image_pixel_values")


FAMILIES: dict[str, tuple[Callable[[Arrays], list[Pixels]], bool]] = {
    "cohere2_vision": (stacked, False),
    "idefics3": (stacked, False),
    "internvl": (stacked, False),
    "lfm2_vl": (lfm2, False),
    "llama4": (stacked, False),
    "llava_next": (stacked, True),
    "minicpmv4_6": (minicpm, True),
    "molmo2": (molmo2, True),
    "ovis2": (stacked, True),
    "phi4_multimodal": (phi4, True),
    "smolvlm": (stacked, False),
    "step3p7": (step3p7, False),
}
"""How pictures lie in the arrays of a family; whether the whole image comes before its tiles."""
UNCUT = {
    "aria": stacked,
    "blip-2": stacked,
    "emu3": stacked,
    "gemma3": stacked,
    "llava": stacked,
    "mistral3": stacked,
    "paligemma": stacked,
}


def ramp(width: int, height: int) -> Pixels:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width).round()
    pixels[..., 1] = np.linspace(0, 255, height).round()[:, None]
    return pixels


def borders_of(transform: Transform) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom of each tile, as the documentation of values says."""
    grid = transform.grid
    if grid is None:
        top, left, bottom, right = transform.crop or (0, 0, *transform.used_size)
        above, before, below, after = transform.pad
        return [(0, 0, right - left + before + after, bottom - top + above + below)]
    return [
        (
            column * grid.step[1],
            row * grid.step[0],
            column * grid.step[1] + grid.tile_size[1],
            row * grid.step[0] + grid.tile_size[0],
        )
        for row in range(grid.shape[0])
        for column in range(grid.shape[1])
    ]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HfTokenizer]:
    made: dict[str, HfTokenizer] = {}

    def tokenizer(name: str) -> HfTokenizer:
        if name not in made:
            folder = zoo.save_processor(name, tmp_path_factory.mktemp(name))
            made[name] = HfTokenizer(Checkpoint(name, folder), HfTokenizerSettings())
        return made[name]

    return tokenizer


def shown(tokenizer: HfTokenizer, pixels: Pixels) -> tuple[Arrays, Transform]:
    image = Image.open(PIL.Image.fromarray(pixels))
    (slot,) = tokenizer.prompt([Message.of("user", "What?", [image])]).media
    assert slot.transform is not None
    return dict(slot.inputs), slot.transform


def check_picture(
    levels: Pixels, is_padding: Pixels, border: tuple[int, ...], transform: Transform
) -> None:
    """Check each pixel of a tile, except those that are mixed with the edge of the image."""
    left, top, right, bottom = border
    assert levels.shape[:2] == (bottom - top, right - left)
    (height, width), (above, before, *_) = transform.upright_size, transform.pad
    cut_top, cut_left = (transform.crop or (0, 0))[:2]
    rows = np.arange(top, bottom) - above + cut_top + 0.5
    columns = np.arange(left, right) - before + cut_left + 0.5
    y, x = rows / transform.scale[0], columns / transform.scale[1]
    is_inside = ((y > 0) & (y < height))[:, None] & ((x > 0) & (x < width))
    np.testing.assert_array_equal(is_padding, ~is_inside)
    is_clear = ((y > 4) & (y < height - 4))[:, None] & ((x > 4) & (x < width - 4))
    expected_x = np.broadcast_to((x - 0.5) * 255 / (width - 1), is_clear.shape)
    expected_y = np.broadcast_to(((y - 0.5) * 255 / (height - 1))[:, None], is_clear.shape)
    for channel, expected in enumerate((expected_x, expected_y)):
        apart = np.abs(levels[..., channel] - expected)[is_clear]
        a_pixel = 255 / (width, height)[channel] / transform.scale[1 - channel]
        assert apart.size == 0 or apart.max() < max(1.5, 0.5 * a_pixel)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("name", [*FAMILIES, *UNCUT])
def test_tiles_lie_where_the_processor_cuts(
    tokenizer_of: Callable[[str], HfTokenizer], name: str, shape: tuple[int, int]
) -> None:
    pictures_of, is_whole_first = FAMILIES.get(name) or (UNCUT[name], False)
    image = ramp(*shape)
    tokenizer = tokenizer_of(name)
    values, transform = shown(tokenizer, image)
    white, _ = shown(tokenizer, np.full_like(image, 255))
    black, _ = shown(tokenizer, np.zeros_like(image))
    borders = borders_of(transform)
    if name in FAMILIES:
        assert transform.grid is not None
        assert transform.num_tiles >= len(borders) > 1
    pictures = [pictures_of(each) for each in (values, white, black)]
    start = len(pictures[0]) - len(borders) if is_whole_first else 0
    for number, border in enumerate(borders, start):
        value, bright, dark = (each[number] for each in pictures)
        is_padding = (bright == dark).all(-1)
        range_ = np.where(bright == dark, 1, bright - dark)
        check_picture((value - dark) / range_ * 255, is_padding, border, transform)


def test_a_wrong_border_is_found(tokenizer_of: Callable[[str], HfTokenizer]) -> None:
    """The comparison of pixels fails for a border that is one pixel off."""
    tokenizer = tokenizer_of("internvl")
    image = ramp(WIDTH, HEIGHT)
    values, transform = shown(tokenizer, image)
    white, black = (shown(tokenizer, np.full_like(image, level))[0] for level in (255, 0))
    value, bright, dark = (stacked(each)[1] for each in (values, white, black))
    levels, padding = (value - dark) / (bright - dark) * 255, np.zeros(value.shape[:2], bool)
    left, top, right, bottom = borders_of(transform)[1]
    check_picture(levels, padding, (left, top, right, bottom), transform)
    with pytest.raises(AssertionError):
        check_picture(levels, padding, (left - 1, top, right - 1, bottom), transform)


def test_the_inspector_of_the_web_page_draws_the_same_borders(
    tokenizer_of: Callable[[str], HfTokenizer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a real browser, for every family and shape."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugins/vlmkit-webui/tests"))
    import chromium
    import msgspec
    from page_server import PageServer

    if chromium.BROWSER is None or chromium.DRIVER is None:
        pytest.skip("no Chromium with its driver here (Debian: chromium, chromium-driver)")
    transforms = [
        shown(tokenizer_of(name), ramp(*shape))[1]
        for name in (*FAMILIES, *UNCUT)
        for shape in SHAPES
    ]
    bodies = image_transforms([ShownImage(1, is_cached=False, transform=t) for t in transforms])
    sent = [each["transform"] for each in msgspec.to_builtins(bodies)]
    script = """
      const done = arguments[1];
      import("/webui/inspector.js").then(
        (inspector) => done(arguments[0].map(inspector.tileBorders)));
    """
    with PageServer(tmp_path) as server, chromium.started_browser(tmp_path) as browser:
        chromium.Page(browser, server)
        drawn = browser.execute_async_script(script, sent)
    assert [[tuple(each) for each in tiles] for tiles in drawn] == [
        borders_of(each) for each in transforms
    ]
