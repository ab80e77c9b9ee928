"""How an image was resized, cropped and padded for a model. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileGrid:
    """How an image was cut into equal tiles, row by row from its top left corner.

    Attributes:
        shape: number of rows and of columns.
        tile_size: ``(height, width)`` of a tile in pixels.
        step: ``(vertical, horizontal)`` pixels from one tile to the next. Tiles overlap where it
            is smaller than a tile.
    """

    shape: tuple[int, int]
    tile_size: tuple[int, int]
    step: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Transform:
    """The transformation of one image for a model; allows mapping coordinates back.

    Attributes:
        source_size: ``(height, width)`` of the file in pixels, before turning upright.
        turned: whether an orientation tag rotated or mirrored the image.
        upright_size: ``(height, width)`` after turning; boxes are reported in these pixels.
        used_size: ``(height, width)`` of the resized image that the model received.
        scale: ``(vertical, horizontal)``: used pixels per upright pixel.
        crop: ``(top, left, bottom, right)`` of the part of the used image that was kept; None if
            nothing was cropped.
        pad: ``(top, left, bottom, right)`` pixels that were added around the used image.
        num_tiles: number of pictures that the encoder sees: the tiles, and the whole image if the
            model sees that, too.
        grid: the tiles in the used image after crop and pad; None if it was not cut.
    """

    source_size: tuple[int, int]
    turned: bool
    upright_size: tuple[int, int]
    used_size: tuple[int, int]
    scale: tuple[float, float]
    crop: tuple[int, int, int, int] | None = None
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    num_tiles: int = 1
    grid: TileGrid | None = None
