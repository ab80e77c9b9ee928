"""What a runner says of itself, for monitoring."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """A runner's state and what it has done since it started."""

    num_running: int
    num_waiting: int
    num_feature_hits: int
    num_feature_misses: int
    counters: dict[str, int]
    observed: dict[str, dict[str, float]]
