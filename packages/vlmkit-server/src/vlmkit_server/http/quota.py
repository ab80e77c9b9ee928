"""A quota that callers share fairly: no caller can hold all of it while others want some.

A holder that can be evicted, such as an idle connection, lets one caller use the whole quota. When
a caller with less arrives, a holder of the caller with most is evicted. A permit, such as that of
a running request, is never evicted: an eighth of the quota is left to callers below their share.
The quota does not know what it limits or what an eviction does. It is used in the event loop's
thread alone. :class:`DrainRate` computes when a refused caller should try again.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from vlmkit.running.scheduling.fair_share import RESERVE_DIVISOR, may_acquire
from vlmkit_server.http.errors import Overloaded

MAX_CHECKS = 256  # holders that are checked for eviction, for one newcomer
NUM_RELEASES = 64  # recent releases that the rate is measured over
MAX_RETRY_S = 3600
MAX_CALLERS = 1024  # with a reserved slot in the future


class Holder(Protocol):
    """An object that holds a part of a quota."""

    @property
    def caller(self) -> str:
        """The caller that it counts for; all holders of a caller are counted together."""
        ...

    @property
    def is_evictable(self) -> bool:
        """Whether it may be evicted for a caller that holds less."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether an eviction loses nothing, so that its own caller may replace it, too."""
        ...

    def evict(self) -> None:
        """Stop: its part of the quota belongs to another holder from now on."""
        ...


class Permit:
    """A part of a quota that is held until it is released, or its ``with`` statement ends.

    Args:
        quota: the quota that it is a part of.
        caller: the caller that it counts for.
    """

    __slots__ = ("_quota", "caller")
    is_evictable = is_idle = False

    def __init__(self, quota: "Quota", caller: str) -> None:
        self._quota = quota
        self.caller = caller

    def __enter__(self) -> "Permit":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def evict(self) -> None:
        """Do nothing: a permit is never evicted."""

    def release(self) -> None:
        """Give the part back; a second call does nothing."""
        self._quota.release(self)


class Quota:
    """A limit, and how much of it each caller holds.

    Args:
        limit: the largest amount that all callers may hold together.
        message: the error for a caller that is refused.

    Attributes:
        num_held: the amount that is held now.
    """

    def __init__(self, limit: int, message: str = "there is no room now") -> None:
        self.limit = limit
        self.num_held = 0
        self._message = message
        self._by_caller: Counter[str] = Counter()
        self._by_amount: dict[int, dict[str, None]] = {}  # callers by the amount that they hold
        self._holders: dict[str, dict[Holder, int]] = {}
        self._waiting: dict[str, deque[tuple[asyncio.Future[Permit], int]]] = {}
        self._drain_rate = DrainRate()

    # Parts that can be evicted.

    def add(self, holder: Holder, amount: int) -> bool:
        """Count an amount for a holder, and evict others if that is needed; False if refused.

        A caller that would hold more than another evicts none of its holders. A caller that would
        hold as much evicts idle ones alone; otherwise a client that connects from many addresses
        could keep all others out.
        """
        while self.num_held + amount > self.limit:
            wanted = self._by_caller[holder.caller] + amount
            victim = self._victim(holder, wanted)
            if victim is None:
                return False
            self.release(victim)
            victim.evict()
        self._add(holder, amount)
        return True

    def release(self, holder: Holder) -> None:
        """Free everything that a holder has; does nothing if that is nothing."""
        holders = self._holders.get(holder.caller)
        if holders is None or (amount := holders.pop(holder, None)) is None:
            return
        self.num_held -= amount
        self._count(holder.caller, -amount)
        self._drain_rate.end(amount)
        if not holders:
            del self._holders[holder.caller], self._by_caller[holder.caller]
        if self._waiting:
            self._admit_waiting()

    # Permits, which are never evicted.

    def fits(self, caller: str, amount: int = 1) -> bool:
        """Tell whether a caller could acquire an amount now."""
        if self.num_held + amount <= self.most_in_parts:  # shares matter in the reserve alone
            return True
        own = self.held_by(caller)
        num_accounts = len(self._by_caller) + (not own)
        return may_acquire(
            amount, limit=self.limit, used=self.num_held, own_used=own, num_tenants=num_accounts
        )

    def acquire(self, caller: str, amount: int = 1) -> Permit:
        """Return a permit, to be released or used in a ``with`` statement.

        Raises:
            Overloaded: there is no room; says when to try again.
        """
        if self._waiting or not self.fits(caller, amount):
            raise self.refusal(caller, amount)
        return self._acquired(caller, amount)

    async def wait(self, caller: str, amount: int = 1) -> Permit:
        """Wait until a permit is available, and return it; the caller with least is next.

        Raises:
            Overloaded: the amount is over the limit.
        """
        if amount > self.limit:
            raise self.refusal(caller, amount)
        if not self._waiting and self.fits(caller, amount):
            return self._acquired(caller, amount)
        turn: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((turn, amount))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().release()
            self._admit_waiting()  # others may have waited for this one
            raise

    def refusal(self, caller: str, amount: int = 1) -> Overloaded:
        """Return the error for a caller without room, with the time to try again."""
        return Overloaded(self._message, retry_after_s=self.retry_after_s(caller, amount))

    def retry_after_s(self, caller: str, amount: int = 1, *, is_reserved: bool = True) -> int:
        """Return after how many seconds a caller should try again.

        Args:
            caller: the caller.
            amount: the amount that it wants.
            is_reserved: whether the caller's slot at that time is reserved for it.
        """
        if self.num_held == 0:
            return 1
        return self._drain_rate.retry_after_s(
            caller,
            amount,
            lacking=max(1, self.num_held + amount - self.limit),
            held=self.num_held,
            num_callers=len(self._by_caller),
            is_reserved=is_reserved,
        )

    @property
    def most_in_parts(self) -> int:
        """The most that a caller can ever acquire in several parts; the first may take it all."""
        return self.limit - self.limit // RESERVE_DIVISOR

    def held_by(self, caller: str) -> int:
        """Return the amount that a caller holds."""
        return self._by_caller.get(caller, 0)

    def _acquired(self, caller: str, amount: int) -> Permit:
        permit = Permit(self, caller)
        self._add(permit, amount)
        return permit

    def _add(self, holder: Holder, amount: int) -> None:
        if not self.num_held:
            self._drain_rate.begin()
        holders = self._holders.setdefault(holder.caller, {})
        holders[holder] = holders.get(holder, 0) + amount
        self._count(holder.caller, amount)
        self.num_held += amount

    def _count(self, caller: str, amount: int) -> None:
        before = self._by_caller[caller]
        self._by_caller[caller] = after = before + amount
        if before:
            same_amount = self._by_amount[before]
            del same_amount[caller]
            if not same_amount:
                del self._by_amount[before]
        if after:
            self._by_amount.setdefault(after, {})[caller] = None

    def _admit_waiting(self) -> None:
        """Give permits to waiting callers, those with least first, while there is room."""
        while self._waiting:
            caller = min(self._waiting, key=self.held_by)
            line = self._waiting[caller]
            turn, amount = line[0]
            if not turn.done():  # a cancelled one takes nothing
                if not self.fits(caller, amount):
                    return
                turn.set_result(self._acquired(caller, amount))
            line.popleft()
            if not line:
                del self._waiting[caller]

    def _victim(self, newcomer: Holder, wanted: int) -> Holder | None:
        """Return a holder to evict: of the callers with most, and of those the oldest."""
        own, num_checks = self._holders.get(newcomer.caller, {}), MAX_CHECKS
        for held in sorted(self._by_amount, reverse=True):
            if held < wanted or not num_checks:
                break
            for other in list(islice(self._by_amount[held], num_checks)):
                num_checks -= 1
                if other != newcomer.caller and (holder := self._oldest(other, held > wanted)):
                    return holder
                self._by_amount[held][other] = self._by_amount[held].pop(other)
        return next((h for h in islice(own, MAX_CHECKS) if h.is_idle and h is not newcomer), None)

    def evict_idle(self) -> bool:
        """Evict an idle holder of the callers with most; False if there is none."""
        for held in sorted(self._by_amount, reverse=True):
            for caller in list(islice(self._by_amount[held], MAX_CHECKS)):
                if holder := self._oldest(caller, or_evictable=False):
                    self.release(holder)
                    holder.evict()
                    return True
        return False

    def _oldest(self, caller: str, or_evictable: bool) -> Holder | None:
        """Return a caller's oldest idle holder, and move the busy ones before it to the end.

        So a caller with many busy holders does not make each search long.
        """
        own = self._holders[caller]
        for holder in list(islice(own, MAX_CHECKS)):
            if holder.is_idle or (or_evictable and holder.is_evictable):
                return holder
            own[holder] = own.pop(holder)
        return None


class DrainRate:
    """Records releases, and assigns retry times to refused callers.

    Refused callers get slots one after the other, at the rate at which the quota empties and the
    callers share it. A caller that returns at its slot finds room, and not all return at once.
    This is the virtual scheduling of GCRA (ITU-T I.371) with a measured rate.

    Args:
        now_s: returns the time in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._releases: deque[tuple[float, int]] = deque(maxlen=NUM_RELEASES)
        self._began_s = now_s()
        self._slots: dict[str, float] = {}  # each caller's last reserved time

    def begin(self) -> None:
        """Start a new measurement: the quota was empty until now."""
        self._releases.clear()
        self._began_s = self._now_s()

    def end(self, amount: int) -> None:
        """Record that an amount was released."""
        self._releases.append((self._now_s(), amount))

    @property
    def rate(self) -> float:
        """The amount released per second; before the first release, as if one happened now."""
        now_s = self._now_s()
        if len(self._releases) < NUM_RELEASES:
            first_s, amount = self._began_s, sum(each for _, each in self._releases)
        else:
            first_s, amount = (
                self._releases[0][0],
                sum(each for _, each in self._releases) - self._releases[0][1],
            )
        return max(1, amount) / max(now_s - first_s, 1e-3)

    def retry_after_s(
        self,
        caller: str,
        amount: int,
        *,
        lacking: int,
        held: int,
        num_callers: int,
        is_reserved: bool = True,
    ) -> int:
        """Return after how many whole seconds a caller should try again; at least one.

        Args:
            caller: the refused caller.
            amount: the amount that it wants.
            lacking: the amount that must be released before.
            held: the amount that is held now: once all of it is released, any caller has room.
            num_callers: callers that share what is released.
            is_reserved: whether the slot is reserved, so that the caller's next one is later.
        """
        now_s, rate = self._now_s(), self.rate
        own_slot_s = self._slots.get(caller, 0.0) + amount * num_callers / rate
        slot_s = min(max(now_s + lacking / rate, own_slot_s), now_s + max(lacking, held) / rate)
        slot_s = min(slot_s, now_s + MAX_RETRY_S)
        if len(self._slots) >= MAX_CALLERS:
            self._slots = {each: when for each, when in self._slots.items() if when > now_s}
        if is_reserved and len(self._slots) < MAX_CALLERS:
            self._slots[caller] = slot_s
        return min(max(1, math.ceil(slot_s - now_s)), MAX_RETRY_S)
