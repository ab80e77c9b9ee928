"""What one key, or one address, has used of its limits, and what its requests hold.

What a request may come to is held from when it is admitted until it is over. What it has really
used by then counts, evenly over the time in which it did; the rest was never used. So what is used
and what is held are together never more than a limit, and nothing of either is lost.
"""

import threading
from collections.abc import Callable, Iterable, Sequence as Seq
from math import ceil
from typing import NamedTuple

from vlmkit_server.http.errors import RETRY_AFTER_S, RateLimited
from vlmkit_server.rate_limits.cost import NOTHING, Cost
from vlmkit_server.rate_limits.meter import QuotaMeter, RateMeter, meter_of
from vlmkit_server.settings.limits import Limit, Unit, counted

POLL_NS = 10**8  # at most so often, answers under way are asked what they used

Clock = Callable[[], int]
"""Returns nanoseconds since 1970."""


class Standing(NamedTuple):
    """How one unit stands, by the limit of it that has least left.

    Attributes:
        most: that limit.
        num_left: of it.
        reset_s: time until all of it is there again, if nothing is used.
    """

    most: int
    num_left: int
    reset_s: float


class Sum(NamedTuple):
    """What was used of one limit of a day or a month.

    Attributes:
        unit: what is counted.
        period: ``day`` or ``month``.
        start_s: when that began, in seconds since 1970.
        num_used: how much was used since.
    """

    unit: str
    period: str
    start_s: int
    num_used: int


class Hold:
    """What one request may come to, and what it has used of that.

    Args:
        most: what it may come to.
    """

    def __init__(self, most: Cost) -> None:
        self.most = most
        self.used: Callable[[], Cost] = _nothing  # so far; never more than the most
        self.counted = NOTHING


class TenantUsage:
    """Meters of one key or address. May be used from any thread.

    Args:
        whose: it is, in words for who is refused.
        limits: of it.
        clock: tells the time.
    """

    def __init__(self, whose: str, limits: Seq[Limit], clock: Clock) -> None:
        self.limits: Seq[Limit] = ()
        self._whose = whose
        self._clock = clock
        self._lock = threading.Lock()
        self._meters: dict[tuple[str, str], RateMeter | QuotaMeter] = {}
        self._holds: set[Hold] = set()
        self._held = NOTHING  # by all of them, beyond what they used
        self._polled_ns = 0
        self.change(limits)

    def change(self, limits: Seq[Limit]) -> None:
        """Have other limits; what was used of one thing and time stays used."""
        with self._lock:
            self._count()
            meters: dict[tuple[str, str], RateMeter | QuotaMeter] = {}
            for limit in limits:
                name = (limit.unit, limit.period)
                meters[name] = self._meters.get(name) or meter_of(limit, self._clock())
                meters[name].limit = limit
            self._meters, self.limits = meters, limits

    def hold(self, most: Cost) -> Hold:
        """Admit a request.

        Raises:
            RateLimited: its limits do not allow that now, or ever.
        """
        with self._lock:
            self._count()
            self._check(most)
            hold = Hold(most)
            self._holds.add(hold)
            self._held = self._held.plus(most)
            return hold

    def use(self, cost: Cost) -> None:
        """Admit what is used at once.

        Raises:
            RateLimited: its limits do not allow that now, or ever.
        """
        with self._lock:
            self._count()
            self._check(cost)
            self._pass_time(cost)

    def end(self, hold: Hold) -> None:
        """Count what a request has used; what else it held is free. Harmless when done twice."""
        with self._lock:
            if hold in self._holds:
                self._pass_time(self._news(hold))
                self._holds.discard(hold)
                self._held = self._held.minus(hold.most.minus(hold.counted))

    def standings(self) -> dict[Unit, Standing]:
        """Return how everything stands that has a limit."""
        with self._lock:
            self._count()
            found: dict[Unit, Standing] = {}
            for meter in self._meters.values():
                unit, most, _ = meter.limit
                num_left = max(0, most - meter.num_used - getattr(self._held, unit))
                standing = Standing(most, num_left, meter.whole_in_s)
                if unit not in found or num_left < found[unit].num_left:
                    found[unit] = standing
            return found

    def restore(self, sums: Iterable[Sum]) -> None:
        """Go on with what an earlier process has used."""
        with self._lock:
            for unit, period, start_s, num_used in sums:
                meter = self._meters.get((unit, period))
                if isinstance(meter, QuotaMeter):
                    meter.restore(start_s, num_used)

    def sums(self) -> list[Sum]:
        """Return what was used of those limits that outlive the process."""
        with self._lock:
            self._count()
            return [
                Sum(meter.limit.unit, meter.limit.period, meter.start_s, meter.num_used)
                for meter in self._meters.values()
                if isinstance(meter, QuotaMeter)
            ]

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is used or held, so that it is as good as a new one."""
        with self._lock:
            self._count()
            return not self._holds and not any(each.num_used for each in self._meters.values())

    # Called with the lock.

    def _count(self) -> None:
        """Count what was used since the last time, unless that was just now."""
        used = NOTHING
        if (now_ns := self._clock()) - self._polled_ns >= POLL_NS or now_ns < self._polled_ns:
            self._polled_ns = now_ns
            for hold in self._holds:
                used = used.plus(self._news(hold))
        self._pass_time(used)

    def _news(self, hold: Hold) -> Cost:
        """Return what a request used since the last time; it holds as much less."""
        so_far = hold.used()
        news = so_far.minus(hold.counted)
        hold.counted = so_far
        self._held = self._held.minus(news)
        return news

    def _pass_time(self, used: Cost) -> None:
        now_ns = self._clock()
        for meter in self._meters.values():
            meter.pass_time(getattr(used, meter.limit.unit), now_ns)

    def _check(self, cost: Cost) -> None:
        refused = []
        for meter in self._meters.values():
            unit, most, _ = meter.limit
            amount = getattr(cost, unit)
            if amount and meter.num_used + getattr(self._held, unit) + amount > most:
                refused.append((meter.limit, amount, meter.fits_in_s(amount)))
        if refused:
            raise self._refusal(refused)

    def _refusal(self, refused: Iterable[tuple[Limit, int, float | None]]) -> RateLimited:
        """Return the error of the limit that lasts longest."""

        def patience(entry: tuple[Limit, int, float | None]) -> float:
            return float("inf") if entry[2] is None else entry[2]

        limit, amount, wait_s = max(refused, key=patience)
        if wait_s is None:
            return RateLimited(
                f"this takes {counted(amount, limit.unit)}, and {self._whose} may have {limit}",
                hint="ask for less; no waiting helps",
                retry_after_s=None,
            )
        # What is held may be free at any time: nobody knows when.
        seconds = max(1, ceil(wait_s)) if wait_s else RETRY_AFTER_S
        return RateLimited(
            f"this takes {counted(amount, limit.unit)}, and {self._whose} has not as much left of "
            f"{limit}",
            hint="try again later",
            retry_after_s=seconds,
        )


def _nothing() -> Cost:
    return NOTHING
