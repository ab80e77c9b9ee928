"""What a runner says of itself, for monitoring."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """A runner's state and what it has done since it started.

    Attributes:
        num_free_tokens: that its cache has room for; None where the engine does not say.
    """

    num_running: int
    num_waiting: int
    num_feature_hits: int
    num_feature_misses: int
    counters: dict[str, int]
    observed: dict[str, dict[str, float]]
    num_free_tokens: int | None = None
