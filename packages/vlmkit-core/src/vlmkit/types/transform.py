"""What was done to a picture before a model looked at it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transform:
    """What happened to one image on its way into the model, so that answers can be mapped back.

    Attributes:
        source_size: ``(height, width)`` of the file, before it was turned upright.
        turned: whether an orientation tag turned the picture.
        upright_size: ``(height, width)`` after turning; boxes are reported in these pixels.
        used_size: ``(height, width)`` of the resized picture that the model looked at.
        scale: ``(vertical, horizontal)``: used pixels per upright pixel.
        crop: ``(top, left, bottom, right)`` of the used picture that was kept; None is all of it.
        pad: ``(top, left, bottom, right)`` pixels that were added around the used picture.
        num_tiles: how many pictures of the model's own size the image was cut into.
    """

    source_size: tuple[int, int]
    turned: bool
    upright_size: tuple[int, int]
    used_size: tuple[int, int]
    scale: tuple[float, float]
    crop: tuple[int, int, int, int] | None = None
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    num_tiles: int = 1
