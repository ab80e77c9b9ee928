"""The usage of one key or one address, and what its requests have reserved.

A request reserves its upper bound from its admission until its end. By then, its real usage counts,
spread evenly over the time in which it occurred; the rest was never used. So usage and reservations
together never exceed a limit, and nothing is lost.
"""

import threading
from collections.abc import Callable, Iterable, Sequence as Seq
from math import ceil
from typing import NamedTuple

from vlmkit_server.http.errors import RETRY_AFTER_S, RateLimited
from vlmkit_server.rate_limits.cost import NOTHING, Cost
from vlmkit_server.rate_limits.meter import QuotaMeter, RateMeter, meter_of
from vlmkit_server.settings.limits import Limit, Unit, counted

POLL_NS = 10**8  # the shortest time between two reads of running answers' usage

Clock = Callable[[], int]
"""Returns nanoseconds since 1970."""


class Standing(NamedTuple):
    """The state of one unit, by the limit with least left.

    Attributes:
        most: that limit.
        num_left: how much of it is left.
        reset_s: time until all of it is left, if nothing is used.
    """

    most: int
    num_left: int
    reset_s: float


class Sum(NamedTuple):
    """The usage of one limit of a day or a month.

    Attributes:
        unit: the unit.
        period: ``day`` or ``month``.
        start_s: when the period began, in seconds since 1970.
        num_used: the usage since then.
    """

    unit: str
    period: str
    start_s: int
    num_used: int


class Reservation:
    """What one request may use at most, and what it has used of that.

    Args:
        most: the upper bound.
    """

    def __init__(self, most: Cost) -> None:
        self.most = most
        self.used: Callable[[], Cost] = _nothing  # so far; at most the bound
        self.counted = NOTHING


class TenantUsage:
    """The meters of one key or address. It may be used from any thread.

    Args:
        subject: names the key or address in error messages.
        limits: its limits.
        clock: returns the time.
    """

    def __init__(self, subject: str, limits: Seq[Limit], clock: Clock) -> None:
        self.limits: Seq[Limit] = ()
        self._subject = subject
        self._clock = clock
        self._lock = threading.Lock()
        self._meters: dict[tuple[str, str], RateMeter | QuotaMeter] = {}
        self._reservations: set[Reservation] = set()
        self._reserved = NOTHING  # by all, beyond what they used
        self._polled_ns = 0
        self.change(limits)

    def change(self, limits: Seq[Limit]) -> None:
        """Replace the limits; the usage of unchanged units and periods stays."""
        with self._lock:
            self._count()
            meters: dict[tuple[str, str], RateMeter | QuotaMeter] = {}
            for limit in limits:
                name = (limit.unit, limit.period)
                meters[name] = self._meters.get(name) or meter_of(limit, self._clock())
                meters[name].limit = limit
            self._meters, self.limits = meters, limits

    def reserve(self, most: Cost) -> Reservation:
        """Admit a request, and reserve its upper bound.

        Raises:
            RateLimited: its limits do not allow that now, or ever.
        """
        with self._lock:
            self._count()
            self._check(most)
            reservation = Reservation(most)
            self._reservations.add(reservation)
            self._reserved = self._reserved.plus(most)
            return reservation

    def use(self, cost: Cost) -> None:
        """Admit and count an amount at once.

        Raises:
            RateLimited: its limits do not allow that now, or ever.
        """
        with self._lock:
            self._count()
            self._check(cost)
            self._pass_time(cost)

    def end(self, reservation: Reservation) -> None:
        """Count a request's usage, and free the rest; a second call does nothing."""
        with self._lock:
            if reservation in self._reservations:
                self._pass_time(self._new_usage(reservation))
                self._reservations.discard(reservation)
                self._reserved = self._reserved.minus(reservation.most.minus(reservation.counted))

    def standings(self) -> dict[Unit, Standing]:
        """Return the state of every unit that has a limit."""
        with self._lock:
            self._count()
            found: dict[Unit, Standing] = {}
            for meter in self._meters.values():
                unit, most, _ = meter.limit
                num_left = max(0, most - meter.num_used - getattr(self._reserved, unit))
                standing = Standing(most, num_left, meter.whole_in_s)
                if unit not in found or num_left < found[unit].num_left:
                    found[unit] = standing
            return found

    def restore(self, sums: Iterable[Sum]) -> None:
        """Add the usage of an earlier process."""
        with self._lock:
            for unit, period, start_s, num_used in sums:
                meter = self._meters.get((unit, period))
                if isinstance(meter, QuotaMeter):
                    meter.restore(start_s, num_used)

    def sums(self) -> list[Sum]:
        """Return the usage of the limits that outlive the process."""
        with self._lock:
            self._count()
            return [
                Sum(meter.limit.unit, meter.limit.period, meter.start_s, meter.num_used)
                for meter in self._meters.values()
                if isinstance(meter, QuotaMeter)
            ]

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is used or reserved, so that a new object is equal to it."""
        with self._lock:
            self._count()
            return not self._reservations and not any(
                each.num_used for each in self._meters.values()
            )

    # Called with the lock held.

    def _count(self) -> None:
        """Count the usage since the last time, unless that was just now."""
        used = NOTHING
        if (now_ns := self._clock()) - self._polled_ns >= POLL_NS or now_ns < self._polled_ns:
            self._polled_ns = now_ns
            for reservation in self._reservations:
                used = used.plus(self._new_usage(reservation))
        self._pass_time(used)

    def _new_usage(self, reservation: Reservation) -> Cost:
        """Return a request's usage since the last time; its reservation shrinks by that."""
        so_far = reservation.used()
        new = so_far.minus(reservation.counted)
        reservation.counted = so_far
        self._reserved = self._reserved.minus(new)
        return new

    def _pass_time(self, used: Cost) -> None:
        now_ns = self._clock()
        for meter in self._meters.values():
            meter.pass_time(getattr(used, meter.limit.unit), now_ns)

    def _check(self, cost: Cost) -> None:
        refused = []
        for meter in self._meters.values():
            unit, most, _ = meter.limit
            amount = getattr(cost, unit)
            if amount and meter.num_used + getattr(self._reserved, unit) + amount > most:
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
                f"this takes {counted(amount, limit.unit)}, and {self._subject} may have {limit}",
                hint="ask for less; no waiting helps",
                retry_after_s=None,
            )
        # Reservations may end at any time, which is unknown.
        seconds = max(1, ceil(wait_s)) if wait_s else RETRY_AFTER_S
        return RateLimited(
            f"this takes {counted(amount, limit.unit)}, and {self._subject} has not as much left "
            f"of {limit}",
            hint="try again later",
            retry_after_s=seconds,
        )


def _nothing() -> Cost:
    return NOTHING
