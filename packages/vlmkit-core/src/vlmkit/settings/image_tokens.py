"""Settings of the size in which models see images."""

import msgspec

from vlmkit.settings.bounds import Positive


class ImageTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maximum tokens of one image, by the requested level of detail; null leaves it to the model.

    If the model's processor cannot reach the number, it makes the image as small as it can.

    Attributes:
        low: tokens of an image in low detail.
        auto: tokens of an image for which the request states no detail.
        high: tokens of an image in high detail.
    """

    low: Positive = 256
    auto: Positive | None = None
    high: Positive | None = None
