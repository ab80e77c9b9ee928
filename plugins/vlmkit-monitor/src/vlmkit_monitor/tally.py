"""Counters and histograms with one writing thread and any number of readers.

Counting takes no lock: a reader sees each count as it was at some moment, and a histogram's buckets
add up to its count. Does not format metrics.
"""

from bisect import bisect_left
from collections import Counter

from vlmkit_monitor.names import BY_NAME

Labels = tuple[str, ...]


class Buckets:
    """A histogram: the number of values in each range, which includes its upper bound.

    Args:
        bounds: the upper bounds of the ranges, ascending.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, other: "Buckets") -> None:
        """Count all that another one counted."""
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self.total += other.total

    def cumulated(self) -> list[tuple[str, float]]:
        """Return the number of values up to each bound, as Prometheus expects it."""
        names = [f"{float(bound)}" for bound in self.bounds] + ["+Inf"]
        found, num = [], 0
        for name, count in zip(names, tuple(self.counts), strict=True):
            num += count
            found.append((name, float(num)))
        return found


class Tally:
    """Counters and histograms, by the names of :mod:`vlmkit_monitor.names` without their prefix."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Labels]] = Counter()
        self.histograms: dict[tuple[str, Labels], Buckets] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        self.counts[name, labels] += by  # type: ignore[assignment]

    def histogram(self, name: str, *labels: str) -> Buckets:
        """Return a histogram; create it if there is none."""
        key = (name, labels)
        if (found := self.histograms.get(key)) is None:
            found = self.histograms[key] = Buckets(BY_NAME[name].bounds)
        return found

    def merge(self, other: "Tally") -> None:
        """Count all that another one counted."""
        self.counts.update(other.counts.copy())
        for (name, labels), buckets in other.histograms.copy().items():
            self.histogram(name, *labels).merge(buckets)
