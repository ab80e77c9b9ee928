"""How much the built-in scheduler runs together."""

import msgspec

from vlmkit.settings.bounds import Positive


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much runs together.

    Attributes:
        max_step_tokens: tokens computed in one step.
        step_budget_ms: how long running answers may wait for prompts between two of their tokens;
            smaller keeps them fluent while prompts are read, larger reads prompts faster. Twice
            the engine's own step of answers comes on top of it.
        max_running: sequences with room in the cache at once; the engine may allow fewer.
        max_waiting: sequences in the queue before a request is refused.
        encoder_budget_tokens: image tokens that are being encoded at once, but always at least one
            image.
    """

    max_step_tokens: Positive = 1024
    step_budget_ms: Positive = 200
    max_running: Positive = 256
    max_waiting: Positive = 1024
    encoder_budget_tokens: Positive = 4096
