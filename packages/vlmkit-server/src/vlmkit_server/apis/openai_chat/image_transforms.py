"""How images were shown, as answers tell it to who asks: sizes and places in pixels, x before y."""

from collections.abc import Iterable

import msgspec

from vlmkit.types.shown_image import ShownImage
from vlmkit.types.transform import Transform

Pair = tuple[int, int]
Edges = tuple[int, int, int, int]


class TransformBody(msgspec.Struct):
    """What was done to a picture, in the order in which it was done.

    A point of the upright picture is at ``scale`` times that in the used one; ``crop`` is what of
    the used one was kept, and ``pad`` what was put around it, each as left, top, right and bottom.
    """

    source_size: Pair
    turned: bool
    upright_size: Pair
    used_size: Pair
    scale: tuple[float, float]
    crop: Edges | None
    pad: Edges
    num_tiles: int


class ImageTransform(msgspec.Struct):
    """One image; ``transform`` is null where the model's processor does not say.

    ``page`` is that of a document, from 1, and is null for any other image.
    """

    num_tokens: int
    cached: bool
    transform: TransformBody | None
    page: int | None


def image_transforms(images: Iterable[ShownImage]) -> list[ImageTransform]:
    """Return how images were shown, in order."""
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
    )


def _pair(size: Pair) -> Pair:
    """Return width and height."""
    return size[1], size[0]


def _edges(edges: Edges) -> Edges:
    """Return left, top, right and bottom."""
    top, left, bottom, right = edges
    return left, top, right, bottom
