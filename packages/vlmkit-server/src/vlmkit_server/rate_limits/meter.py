"""Meters the usage of one limit. It knows no requests, and takes the time from its caller.

Usage by the minute and the hour expires evenly, like a leaky bucket: the Generic Cell Rate
Algorithm of ITU-T I.371 in its continuous-state form. Usage by the day and the month is summed
until the next one begins, in UTC.
"""

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

from vlmkit_server.settings.limits import Limit

S = 10**9  # nanoseconds
_PERIODS_NS = {"minute": 60 * S, "hour": 3600 * S}


class Meter(ABC):
    """Counts the usage of one limit. All numbers are integers, so rounding loses nothing.

    Args:
        limit: the limit.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit

    @abstractmethod
    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Add the usage since the last call, spread evenly over that time.

        Args:
            num_used: the usage.
            now_ns: nanoseconds since 1970. If the clock was set back, no time passes.
        """

    @property
    @abstractmethod
    def num_used(self) -> int:
        """How much of the limit is used, rounded up."""

    @abstractmethod
    def fits_in_s(self, amount: int) -> float | None:
        """Return how long until an amount fits, if nothing else is used; None if never."""

    @property
    @abstractmethod
    def whole_in_s(self) -> float:
        """How long until nothing counts as used."""


class RateMeter(Meter):
    """Meters a minute or an hour: a bucket that leaks at the allowed rate.

    Args:
        limit: the limit.
        now_ns: nanoseconds since 1970.
    """

    def __init__(self, limit: Limit, now_ns: int) -> None:
        super().__init__(limit)
        self._period_ns = _PERIODS_NS[limit.period]
        self._used_ns = 0  # usage times the period
        self._at_ns = now_ns

    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Add the usage, and leak what the elapsed time allows."""
        leaked = self.limit.most * max(0, now_ns - self._at_ns)
        self._used_ns = max(0, self._used_ns + num_used * self._period_ns - leaked)
        self._at_ns = now_ns

    @property
    def num_used(self) -> int:
        """The bucket's content, rounded up."""
        return -(-self._used_ns // self._period_ns)

    def fits_in_s(self, amount: int) -> float | None:
        """Return how long until the amount fits into the bucket."""
        if amount > self.limit.most:
            return None
        over = self._used_ns + (amount - self.limit.most) * self._period_ns
        return self._time_s(over)

    @property
    def whole_in_s(self) -> float:
        """How long until the bucket is empty."""
        return self._time_s(self._used_ns)

    def _time_s(self, used_ns: int) -> float:
        if used_ns <= 0:
            return 0.0
        return -(-used_ns // self.limit.most) / S if self.limit.most else self._period_ns / S


class QuotaMeter(Meter):
    """Meters a day or a month: a sum.

    Args:
        limit: the limit.
        now_ns: nanoseconds since 1970.
    """

    def __init__(self, limit: Limit, now_ns: int) -> None:
        super().__init__(limit)
        self._at_ns = now_ns
        self._sum = 0
        self.start_s, self._end_s = _window(limit.period, now_ns // S)

    def restore(self, start_s: int, num_used: int) -> None:
        """Add the usage of an earlier process, if it is of the current window."""
        if start_s == self.start_s:
            self._sum += num_used

    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Add the usage; the sum starts again if a new window has begun."""
        self._at_ns = now_ns
        if now_ns >= self._end_s * S:
            self._sum = 0
            self.start_s, self._end_s = _window(self.limit.period, now_ns // S)
        self._sum += num_used

    @property
    def num_used(self) -> int:
        """The usage in this window."""
        return self._sum

    def fits_in_s(self, amount: int) -> float | None:
        """Return how long until the amount is left."""
        if amount > self.limit.most:
            return None
        return 0.0 if self._sum + amount <= self.limit.most else self.whole_in_s

    @property
    def whole_in_s(self) -> float:
        """How long until the next window begins."""
        return max(0.0, (self._end_s * S - self._at_ns) / S)


def meter_of(limit: Limit, now_ns: int) -> RateMeter | QuotaMeter:
    """Return a meter for a limit."""
    return (RateMeter if limit.period in _PERIODS_NS else QuotaMeter)(limit, now_ns)


def _window(period: str, now_s: int) -> tuple[int, int]:
    """Return the start of the day or month that contains a time, and of the next one."""
    start = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "month":
        start = start.replace(day=1)
        end = (start + timedelta(days=31)).replace(day=1)
    else:
        end = start + timedelta(days=1)
    return int(start.timestamp()), int(end.timestamp())
