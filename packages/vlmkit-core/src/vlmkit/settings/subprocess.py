"""Settings of the built-in runner that answers requests in a child process."""

import msgspec

from vlmkit.settings.bounds import Count, Seconds


class SubprocessSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the child process of a model is started again.

    Attributes:
        start_timeout_s: time for the child to build the model.
        max_restarts: restarts in a row, after which the model counts as failed.
        stable_s: time for which a child must run, so that the next restart counts as the first.
    """

    start_timeout_s: Seconds = 3600.0
    max_restarts: Count = 10
    stable_s: Seconds = 60.0
