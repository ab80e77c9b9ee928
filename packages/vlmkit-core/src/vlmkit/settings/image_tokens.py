"""How large pictures are shown."""

import msgspec

from vlmkit.settings.bounds import Positive


class ImageTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one image, by the detail that a request asks for; null leaves them to the model.

    A picture that the model's processor cannot make so small is made as small as it can.

    Attributes:
        low: tokens of an image that is looked at from afar.
        auto: tokens of an image of which the request says nothing.
        high: tokens of an image that is looked at closely.
    """

    low: Positive = 256
    auto: Positive | None = None
    high: Positive | None = None
