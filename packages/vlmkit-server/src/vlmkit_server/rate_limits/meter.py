"""What was used of one limit. Knows no requests, and no clock but the times that it is told.

By the minute and the hour, what was used is forgotten evenly, as water leaves a leaky bucket: the
Generic Cell Rate Algorithm of ITU-T I.371 in its continuous-state form. By the day and the month
it is summed up until the next one begins, in UTC.
"""

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

from vlmkit_server.settings.limits import Limit

S = 10**9  # nanoseconds
_PERIODS_NS = {"minute": 60 * S, "hour": 3600 * S}


class Meter(ABC):
    """Counts one thing. All numbers are whole, so that nothing is ever lost by rounding.

    Args:
        limit: of it.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit

    @abstractmethod
    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Count what was used since the last call, evenly in that time.

        Args:
            num_used: how much.
            now_ns: nanoseconds since 1970. A clock that was set back makes no time pass.
        """

    @property
    @abstractmethod
    def num_used(self) -> int:
        """How much of the limit is used, a part counting as one."""

    @abstractmethod
    def fits_in_s(self, amount: int) -> float | None:
        """Return how long until so much can be used, if nothing else is; None if that is never."""

    @property
    @abstractmethod
    def whole_in_s(self) -> float:
        """How long until nothing counts as used any more."""


class RateMeter(Meter):
    """Of a minute or an hour: a bucket that leaks as much as is allowed.

    Args:
        limit: of it.
        now_ns: nanoseconds since 1970.
    """

    def __init__(self, limit: Limit, now_ns: int) -> None:
        super().__init__(limit)
        self._period_ns = _PERIODS_NS[limit.period]
        self._level = 0  # what is used, times the period
        self._at_ns = now_ns

    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Pour in what was used, and let leak what the time allows."""
        leaked = self.limit.most * max(0, now_ns - self._at_ns)
        self._level = max(0, self._level + num_used * self._period_ns - leaked)
        self._at_ns = now_ns

    @property
    def num_used(self) -> int:
        """How much is in the bucket."""
        return -(-self._level // self._period_ns)

    def fits_in_s(self, amount: int) -> float | None:
        """Return when the bucket has room."""
        if amount > self.limit.most:
            return None
        over = self._level + (amount - self.limit.most) * self._period_ns
        return self._time_s(over)

    @property
    def whole_in_s(self) -> float:
        """How long until the bucket is empty."""
        return self._time_s(self._level)

    def _time_s(self, level: int) -> float:
        if level <= 0:
            return 0.0
        return -(-level // self.limit.most) / S if self.limit.most else self._period_ns / S


class QuotaMeter(Meter):
    """Of a day or a month: a sum.

    Args:
        limit: of it.
        now_ns: nanoseconds since 1970.
    """

    def __init__(self, limit: Limit, now_ns: int) -> None:
        super().__init__(limit)
        self._at_ns = now_ns
        self._sum = 0
        self.start_s, self._end_s = _window(limit.period, now_ns // S)

    def restore(self, start_s: int, num_used: int) -> None:
        """Go on with what was used before, unless that was in another window."""
        if start_s == self.start_s:
            self._sum += num_used

    def pass_time(self, num_used: int, now_ns: int) -> None:
        """Add what was used, to that of a new window if one has begun."""
        self._at_ns = now_ns
        if now_ns >= self._end_s * S:
            self._sum = 0
            self.start_s, self._end_s = _window(self.limit.period, now_ns // S)
        self._sum += num_used

    @property
    def num_used(self) -> int:
        """How much was used in this window."""
        return self._sum

    def fits_in_s(self, amount: int) -> float | None:
        """Return when there is as much left."""
        if amount > self.limit.most:
            return None
        return 0.0 if self._sum + amount <= self.limit.most else self.whole_in_s

    @property
    def whole_in_s(self) -> float:
        """How long until the next window begins."""
        return max(0.0, (self._end_s * S - self._at_ns) / S)


def meter_of(limit: Limit, now_ns: int) -> RateMeter | QuotaMeter:
    """Return what counts for a limit."""
    return (RateMeter if limit.period in _PERIODS_NS else QuotaMeter)(limit, now_ns)


def _window(period: str, now_s: int) -> tuple[int, int]:
    """Return when the day or month of a moment began, and when the next one does."""
    start = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "month":
        start = start.replace(day=1)
        end = (start + timedelta(days=31)).replace(day=1)
    else:
        end = start + timedelta(days=1)
    return int(start.timestamp()), int(end.timestamp())
