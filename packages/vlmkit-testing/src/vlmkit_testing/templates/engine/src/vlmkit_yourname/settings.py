"""The settings of the engine, which are read before anything is built."""

from typing import Annotated

import msgspec


class AttentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[engine]`` beside ``use = "yourname"``.

    Attributes:
        capacity_tokens: tokens that the cache holds.
    """

    capacity_tokens: Annotated[int, msgspec.Meta(ge=64, le=2**24)] = 4096
