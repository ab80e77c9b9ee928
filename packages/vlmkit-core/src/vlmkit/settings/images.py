"""Limits of image files."""

from typing import Annotated

import msgspec

from vlmkit.settings.bounds import Positive


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that refuse an image before it takes memory or breaks a model.

    Attributes:
        max_bytes: maximum size of the encoded file.
        max_pixels: maximum width times height, read from the header.
        min_side_pixels: minimum length of the shortest side, to protect a model's processor.
        max_aspect_ratio: maximum ratio of the longest side to the shortest.
        max_scans: maximum number of scans of a JPEG file; progressive files usually have 10.
    """

    max_bytes: Positive = 32 * 2**20
    max_pixels: Positive = 50_000_000
    min_side_pixels: Positive = 2
    max_aspect_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 100.0
    max_scans: Positive = 100
