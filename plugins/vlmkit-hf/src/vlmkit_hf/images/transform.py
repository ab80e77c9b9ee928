"""Reports how a processor transformed an image, so that coordinates in answers map back to it.

The report follows from the processor's settings and arrays. A family whose treatment is unknown
gets no report rather than a wrong one.
"""

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vlmkit.types.image import Image
from vlmkit.types.transform import TileGrid, Transform
from vlmkit_hf.images.pillow.grids import nearest_in_shape, up_to
from vlmkit_hf.images.pillow.sizes import best_canvas
from vlmkit_hf.images.pillow.views import Cut, Pad, Plan, Resize, View, num_tiles
from vlmkit_hf.images.size import Size

Sides = tuple[int, int]
SIDES = ("height", "width")


@runtime_checkable
class Planner(Protocol):
    """An image processor that returns its plan for an image of a given size."""

    def plan(self, size: Size, options: Mapping[str, Any]) -> Plan:
        """Return the views of such an image."""
        ...


def transform_of(
    image: Image, arrays: Mapping[str, Any], processor: Any, options: Mapping[str, Any]
) -> Transform | None:
    """Return the transform of one image; None if the family's treatment is unknown.

    Args:
        image: the upright image.
        arrays: the image processor's arrays of this image alone.
        processor: the image processor.
        options: the arguments of the call.
    """
    if isinstance(processor, Planner):
        return _from_plan(image, processor.plan(Size(image.height, image.width), options))
    return _from_arrays(image, arrays, _Settings(processor, options))


def _from_arrays(
    image: Image, arrays: Mapping[str, Any], settings: "_Settings"
) -> Transform | None:
    """Return the transform by a processor of transformers, from its arrays and settings."""
    for name, report in _BY_ARRAY.items():
        if name in arrays:
            return report(image, arrays, settings)
    if "pixel_values" not in arrays:
        return None
    shape = tuple(arrays["pixel_values"][0].shape)
    if settings.get("image_grid_pinpoints"):
        return _padded_tiles(image, shape, settings)
    is_one = len(shape) == 3 and len(arrays["pixel_values"]) == 1
    if not is_one or settings.get("do_pan_and_scan"):
        return None
    if "image_sizes" in arrays:
        height, width = (int(n) for n in arrays["image_sizes"][0])
        return _report(image, (height, width))
    if settings.get("do_center_crop"):
        return _cropped(image, shape[1:], settings)
    return None if settings.get("do_pad") else _report(image, (shape[1], shape[2]))


def _from_plan(image: Image, plan: Plan) -> Transform | None:
    """Return the transform of a plan, from the view that is cut into tiles, or else the first.

    It is known for an image that is resized, padded and cut, in this order. Each step is optional.
    """
    cuts = {number: _cut_of(view) for number, view in enumerate(plan.views)}
    number = next((number for number, cut in cuts.items() if cut), 0)
    cut, steps = cuts[number], list(takewhile(_is_before_cut, plan.views[number]))
    resizes = [step for step in steps if isinstance(step, Resize)]
    pads = [step for step in steps if isinstance(step, Pad)]
    if steps != [*resizes, *pads] or len(pads) > 1:
        return None
    used = resizes[-1].size if resizes else Size(image.height, image.width)
    ground = pads[0] if pads else Pad(used)
    pad = (
        ground.top,
        ground.left,
        ground.size.height - used.height - ground.top,
        ground.size.width - used.width - ground.left,
    )
    count, grid = sum(map(num_tiles, plan.views)), _grid_of(ground.size, cut) if cut else None
    return _report(image, used, pad=pad, num_tiles=count, grid=grid)


def _is_before_cut(step: object) -> bool:
    return not isinstance(step, Cut)


def _cut_of(view: View) -> Cut | None:
    """Return the step that cuts an image into tiles, if there is one."""
    return next((step for step in view if isinstance(step, Cut)), None)


def _grid_of(canvas: Size, cut: Cut) -> TileGrid | None:
    """Return the tiles that a canvas is cut into; None if it is a single one."""
    tile, step = cut.tile, cut.step or cut.tile
    rows = (canvas.height - tile.height) // step.height + 1
    columns = (canvas.width - tile.width) // step.width + 1
    return _grid(rows, columns, tile, step)


class _Settings:
    """A processor's settings, overridden by the options of a call."""

    def __init__(self, processor: Any, options: Mapping[str, Any]) -> None:
        self._processor = processor
        self._options = options

    def get(self, name: str) -> Any:
        value = self._options.get(name)
        return getattr(self._processor, name, None) if value is None else value


def _report(image: Image, used: Sides, **more: Any) -> Transform:
    return Transform(
        source_size=(image.source_size[1], image.source_size[0]),
        turned=image.turned,
        upright_size=(image.height, image.width),
        used_size=used,
        scale=(used[0] / image.height, used[1] / image.width),
        **more,
    )


def _grid(rows: int, columns: int, tile: Sides, step: Sides | None = None) -> TileGrid | None:
    """Return a grid of tiles; None if there is only one."""
    if rows * columns <= 1:
        return None
    step = step or tile
    return TileGrid((rows, columns), (tile[0], tile[1]), (step[0], step[1]))


def _in_patches(image: Image, arrays: Mapping[str, Any], settings: _Settings) -> Transform:
    """Qwen-VL, GLM-4V: stretched to whole patches."""
    patch = settings.get("patch_size")
    _, rows, columns = (int(n) for n in arrays["image_grid_thw"][0])
    return _report(image, (rows * patch, columns * patch))


def _tiled(image: Image, arrays: Mapping[str, Any], settings: _Settings) -> Transform:
    """Idefics3, SmolVLM: stretched to whole tiles, and a second time to a single tile.

    Granite Docling is the same, except that it shows an image of one tile only once.
    """
    rows, columns = int(arrays["rows"][0][0]), int(arrays["cols"][0][0])
    longest = settings.get("max_image_size")
    tile = (
        settings.get("size") if longest is None else dict.fromkeys(SIDES, longest["longest_edge"])
    )
    used = (max(rows, 1) * tile["height"], max(columns, 1) * tile["width"])
    is_alone = longest is None and rows * columns == 1
    grid = _grid(rows, columns, (tile["height"], tile["width"]))
    return _report(image, used, num_tiles=1 if is_alone else rows * columns + 1, grid=grid)


def _stretched_tiles(image: Image, arrays: Mapping[str, Any], settings: _Settings) -> Transform:
    """InternVL: stretched to a grid of tiles; if there are several, also to a single tile."""
    num_tiles = int(arrays["num_patches"][0])
    size = settings.get("size")
    height, width = size["height"], size["width"]
    if num_tiles == 1:
        return _report(image, (height, width))
    allowed = up_to(settings.get("max_patches"), settings.get("min_patches"))
    rows, columns = nearest_in_shape(Size(image.height, image.width), Size(height, width), allowed)
    grid = _grid(rows, columns, (height, width))
    return _report(image, (rows * height, columns * width), num_tiles=num_tiles, grid=grid)


def _in_slices(image: Image, arrays: Mapping[str, Any], _: _Settings) -> Transform:
    """MiniCPM-V: in whole patches; a large image also stretched to a grid of slices."""
    patch = arrays["pixel_values"].shape[-2]
    rows, columns = (int(n) for n in arrays["grids"][0])
    sizes = arrays["target_sizes"]
    height, width = (int(n) * patch for n in sizes[-1])
    used = (max(rows, 1) * height, max(columns, 1) * width)
    grid = _grid(rows, columns, (height, width))
    return _report(image, used, num_tiles=len(sizes), grid=grid)


def _whole_and_tiles(image: Image, arrays: Mapping[str, Any], settings: _Settings) -> Transform:
    """Ovis2: stretched to a grid of tiles; if there are several, also to a single tile."""
    if "target_sizes" in arrays:
        return _in_slices(image, arrays, settings)
    num_tiles, _, height, width = arrays["pixel_values"].shape
    rows, columns = (int(n) for n in arrays["grids"][0])
    grid = _grid(rows, columns, (height, width))
    return _report(image, (rows * height, columns * width), num_tiles=num_tiles, grid=grid)


def _in_corner(image: Image, arrays: Mapping[str, Any], _: _Settings) -> Transform | None:
    """Aria: aspect ratio kept, in the top left corner of a square; None if it is also cut."""
    if len(arrays["pixel_mask"]) != 1:
        return None
    mask = np.asarray(arrays["pixel_mask"][0], bool)
    height, width = int(mask.any(axis=1).sum()), int(mask.any(axis=0).sum())
    pad = (0, 0, mask.shape[0] - height, mask.shape[1] - width)
    return _report(image, (height, width), pad=pad)


def _padded_tiles(image: Image, shape: tuple[int, ...], settings: _Settings) -> Transform:
    """LLaVA-NeXT: aspect ratio kept and padded to a grid of tiles; also stretched to one tile."""
    height, width = best_canvas(
        Size(image.height, image.width), settings.get("image_grid_pinpoints")
    )
    scale = min(height / image.height, width / image.width)
    used = (
        min(-int(-image.height * scale // 1), height),
        min(-int(-image.width * scale // 1), width),
    )
    top, left = (height - used[0]) // 2, (width - used[1]) // 2
    pad = (top, left, height - used[0] - top, width - used[1] - left)
    tile = (shape[-2], shape[-1])
    grid = _grid(height // tile[0], width // tile[1], tile)
    return _report(image, used, pad=pad, num_tiles=shape[0], grid=grid)


def _cropped(image: Image, crop_size: tuple[int, ...], settings: _Settings) -> Transform | None:
    """CLIP: the shorter side resized to the model's size, then cropped to the centre."""
    size = settings.get("size")
    if not settings.get("do_resize") or "shortest_edge" not in size:
        return None
    edge = size["shortest_edge"]
    upright = (image.height, image.width)
    short, long = sorted(upright)
    longer = int(edge * long / short)
    used = (edge, longer) if upright[0] <= upright[1] else (longer, edge)
    top, left = (used[0] - crop_size[0]) // 2, (used[1] - crop_size[1]) // 2
    return _report(image, used, crop=(top, left, top + crop_size[0], left + crop_size[1]))


_BY_ARRAY: dict[str, Callable[[Image, Mapping[str, Any], _Settings], Transform | None]] = {
    "grids": _whole_and_tiles,
    "pixel_mask": _in_corner,
    "image_grid_thw": _in_patches,
    "rows": _tiled,
    "num_patches": _stretched_tiles,
}
