"""How the built-in proposer guesses."""

import msgspec

from vlmkit.settings.bounds import Positive


class NgramSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as a repetition, and how far it is followed.

    Attributes:
        match_tokens: newest tokens that must have stood together before.
        first_depth_tokens: guesses of the first time; later times follow how well they did.
        max_draft_tokens: most guesses at a time; the engine may take fewer.
    """

    match_tokens: Positive = 3
    first_depth_tokens: Positive = 3
    max_draft_tokens: Positive = 10
