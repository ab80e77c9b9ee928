"""The size of an image in pixels."""

from typing import NamedTuple


class Size(NamedTuple):
    """Height and width of an upright image, in pixels."""

    height: int
    width: int
