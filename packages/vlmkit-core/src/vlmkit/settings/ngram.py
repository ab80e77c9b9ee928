"""Settings of the built-in n-gram proposer."""

import msgspec

from vlmkit.settings.bounds import Positive


class NgramSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as a repetition, and how many tokens of it are drafted.

    Attributes:
        match_tokens: number of newest tokens that must have occurred together before.
        first_depth_tokens: number of drafts at first; it then adapts to how many are accepted.
        max_draft_tokens: maximum number of drafts at a time; the engine may take fewer.
    """

    match_tokens: Positive = 3
    first_depth_tokens: Positive = 3
    max_draft_tokens: Positive = 10
