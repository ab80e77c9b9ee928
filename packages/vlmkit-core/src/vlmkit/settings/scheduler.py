"""Settings of the built-in scheduler."""

import msgspec

from vlmkit.settings.bounds import Positive


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of steps and queues.

    Attributes:
        max_step_tokens: maximum number of tokens computed in one step.
        step_budget_ms: time that prefill may delay running answers between two of their tokens, in
            addition to twice the engine's own decode step. A smaller value keeps answers fluent
            during prefill; a larger one speeds up prefill.
        max_running: maximum number of sequences in the cache at once; the engine may allow fewer.
        max_waiting: maximum number of sequences in the queue; further requests are refused.
        encoder_budget_tokens: maximum number of image tokens being encoded at once, but always at
            least one image.
    """

    max_step_tokens: Positive = 1024
    step_budget_ms: Positive = 200
    max_running: Positive = 256
    max_waiting: Positive = 1024
    encoder_budget_tokens: Positive = 4096
