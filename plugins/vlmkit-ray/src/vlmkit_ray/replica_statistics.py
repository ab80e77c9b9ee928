"""The statistics of a model, from those of replicas that come and go."""

from collections.abc import Mapping
from dataclasses import replace

from vlmkit.running.remote_runner.runner import NO_STATS
from vlmkit.running.replicas import sum_of_stats
from vlmkit.types.runner_stats import RunnerStats

MAX_SEEN = 1000  # replicas whose last statistics are kept one by one


class ReplicaStatistics:
    """Adds the statistics of replicas, so that counters never fall when one is stopped."""

    def __init__(self) -> None:
        self._seen: dict[str, RunnerStats] = {}
        self._forgotten = NO_STATS

    def of(self, stats: Mapping[str, RunnerStats]) -> RunnerStats:
        """Return the sums of the present replicas, with the counters of those before them."""
        self._seen |= stats
        stopped = {name: each for name, each in self._seen.items() if name not in stats}
        for name in [*stopped][: max(0, len(self._seen) - MAX_SEEN)]:
            self._forgotten = sum_of_stats([self._forgotten, stopped.pop(name)])
            del self._seen[name]
        past = sum_of_stats([self._forgotten, *stopped.values()])
        present = sum_of_stats(list(stats.values()))
        return replace(
            present,
            counters=sum_of_stats([past, present]).counters,
            num_feature_hits=past.num_feature_hits + present.num_feature_hits,
            num_feature_misses=past.num_feature_misses + present.num_feature_misses,
        )
