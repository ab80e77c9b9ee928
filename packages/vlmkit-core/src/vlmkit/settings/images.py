"""Which pictures are refused."""

from typing import Annotated

import msgspec

from vlmkit.settings.bounds import Positive


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is refused before it can cost memory or break a model.

    Attributes:
        max_bytes: size of the encoded file.
        max_pixels: width times height, read from the header.
        min_side_pixels: shortest side that a model's processor is trusted with.
        max_aspect_ratio: longest side divided by the shortest.
        max_scans: times that a JPEG file may go over its pixels; 10 are usual in progressive ones.
    """

    max_bytes: Positive = 32 * 2**20
    max_pixels: Positive = 50_000_000
    min_side_pixels: Positive = 2
    max_aspect_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 100.0
    max_scans: Positive = 100
