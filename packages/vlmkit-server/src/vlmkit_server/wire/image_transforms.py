"""The transforms of images, which answers report on request; in pixels, x before y."""

from collections.abc import Iterable

import msgspec

from vlmkit.types.shown_image import ShownImage
from vlmkit.types.transform import TileGrid, Transform

Pair = tuple[int, int]
Edges = tuple[int, int, int, int]


class TileGridBody(msgspec.Struct):
    """Equal tiles, row by row from the top left corner of the used image after crop and pad.

    ``step`` is the distance from one tile to the next: tiles overlap where it is smaller than
    ``tile_size``.
    """

    columns: int
    rows: int
    tile_size: Pair
    step: Pair


class TransformBody(msgspec.Struct):
    """The steps that transform an image, in order.

    A point of the upright image times ``scale`` is its position in the used image. ``crop`` is the
    part of the used image that is kept, and ``pad`` the margins added around it. Both are left,
    top, right and bottom.
    """

    source_size: Pair
    turned: bool
    upright_size: Pair
    used_size: Pair
    scale: tuple[float, float]
    crop: Edges | None
    pad: Edges
    num_tiles: int
    grid: TileGridBody | None


class ImageTransform(msgspec.Struct):
    """One image; ``transform`` is null if the model's processor does not report it.

    ``page`` is the page of a document, from 1, and null for any other image.
    """

    num_tokens: int
    cached: bool
    transform: TransformBody | None
    page: int | None


def image_transforms(images: Iterable[ShownImage]) -> list[ImageTransform]:
    """Return the transforms of images, in order."""
    return [
        ImageTransform(
            image.num_tokens,
            image.is_cached,
            None if image.transform is None else _body(image.transform),
            image.page,
        )
        for image in images
    ]


def _body(transform: Transform) -> TransformBody:
    vertical, horizontal = transform.scale
    return TransformBody(
        _pair(transform.source_size),
        transform.turned,
        _pair(transform.upright_size),
        _pair(transform.used_size),
        (horizontal, vertical),
        None if transform.crop is None else _edges(transform.crop),
        _edges(transform.pad),
        transform.num_tiles,
        None if transform.grid is None else _grid(transform.grid),
    )


def _grid(grid: TileGrid) -> TileGridBody:
    rows, columns = grid.shape
    return TileGridBody(columns, rows, _pair(grid.tile_size), _pair(grid.step))


def _pair(size: Pair) -> Pair:
    """Return width and height."""
    return size[1], size[0]


def _edges(edges: Edges) -> Edges:
    """Return left, top, right and bottom."""
    top, left, bottom, right = edges
    return left, top, right, bottom
