"""Statistics of a runner, for monitoring."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """The state of a runner, and its counters since it started.

    Attributes:
        num_running: sequences admitted to the cache.
        num_waiting: sequences in the queue.
        num_feature_hits: media whose features were cached.
        num_feature_misses: media whose features were not cached.
        counters: totals of the engine loop, by name.
        observed: the numbers of each observer, by its name.
        num_free_tokens: tokens of the cache that are not allocated; None if unknown.
    """

    num_running: int
    num_waiting: int
    num_feature_hits: int
    num_feature_misses: int
    counters: dict[str, int]
    observed: dict[str, dict[str, float]]
    num_free_tokens: int | None = None
