"""Room that strangers share: nobody can have all of it when others want some.

Some of it can be taken back, as an idle connection can: who has most makes way when somebody with
less comes, so that one alone can use all of it. What cannot be taken back, as the place of a
request, is claimed: an eighth is then left to those who have less than their share. What it is room
for, and what it means to leave, is its users' business. Is used in the event loop's thread alone.
"""

import asyncio
from collections import Counter, deque
from itertools import islice
from typing import Protocol

from vlmkit.running.scheduling.fair_share import may_acquire
from vlmkit_server.http.drain_rate import DrainRate
from vlmkit_server.http.errors import Overloaded

LOOKS = 256  # at those who might leave, for one newcomer


class Holder(Protocol):
    """Who has a part of the room."""

    @property
    def caller(self) -> str:
        """Whose it is; parts of one caller are counted together."""
        ...

    @property
    def can_leave(self) -> bool:
        """Whether it may be told to leave for a caller who has less."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it leaves, so that its own caller can have its room."""
        ...

    def leave(self) -> None:
        """Give up; its part of the room is another's at once."""
        ...


class Permit:
    """A part of a room that is its holder's until it is released, or its ``with`` statement ends.

    Args:
        room: whose part it is.
        caller: on whose account.
    """

    __slots__ = ("_room", "caller")
    can_leave = is_idle = False

    def __init__(self, room: "Quota", caller: str) -> None:
        self._room = room
        self.caller = caller

    def __enter__(self) -> "Permit":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def leave(self) -> None:
        """Do nothing: it is never told to."""

    def release(self) -> None:
        """Give it back; nothing happens if that was done."""
        self._room.give_back(self)


class Quota:
    """A bound, and who has how much of it.

    Args:
        most: the bound.
        sentence: what is said to whoever is refused.

    Attributes:
        num_held: how much is taken.
    """

    def __init__(self, most: int, sentence: str = "there is no room now") -> None:
        self.most = most
        self.num_held = 0
        self._sentence = sentence
        self._by_caller: Counter[str] = Counter()
        self._by_amount: dict[int, dict[str, None]] = {}  # callers who have so much
        self._guests: dict[str, dict[Holder, int]] = {}
        self._waiting: dict[str, deque[tuple[asyncio.Future[Permit], int]]] = {}
        self._turnover = DrainRate()

    # What can be taken back.

    def take(self, guest: Holder, amount: int) -> bool:
        """Let a guest have so much more, if need be of what others have; False if it may not.

        Nobody leaves for a caller who would have more than he has. For one who would have as much,
        only who is idle does: one who comes from many places could keep everybody out otherwise.
        """
        while self.num_held + amount > self.most:
            wanted = self._by_caller[guest.caller] + amount
            other = self._who_leaves(guest, wanted)
            if other is None:
                return False
            self.give_back(other)
            other.leave()
        self._add(guest, amount)
        return True

    def give_back(self, guest: Holder) -> None:
        """Take back all that a guest has; nothing happens if that is nothing."""
        own = self._guests.get(guest.caller)
        if own is None or (amount := own.pop(guest, None)) is None:
            return
        self.num_held -= amount
        self._count(guest.caller, -amount)
        self._turnover.end(amount)
        if not own:
            del self._guests[guest.caller], self._by_caller[guest.caller]
        if self._waiting:
            self._let_in()

    # What cannot.

    def fits(self, caller: str, amount: int = 1) -> bool:
        """Tell whether a caller could claim so much now."""
        own = self.held_by(caller)
        num_accounts = len(self._by_caller) + (not own)
        return may_acquire(
            amount, limit=self.most, used=self.num_held, own_used=own, num_tenants=num_accounts
        )

    def claim(self, caller: str, amount: int = 1) -> Permit:
        """Return a part of the room; to be released, or used in a ``with`` statement.

        Raises:
            Overloaded: there is no room for it; says when to come back.
        """
        if self._waiting or not self.fits(caller, amount):
            raise self.refusal(caller, amount)
        return self._claimed(caller, amount)

    async def wait(self, caller: str, amount: int = 1) -> Permit:
        """Wait for a part of the room, and return it; who holds least is next.

        Raises:
            Overloaded: there will never be so much.
        """
        if amount > self.most:
            raise self.refusal(caller, amount)
        if not self._waiting and self.fits(caller, amount):
            return self._claimed(caller, amount)
        turn: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((turn, amount))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().release()
            self._let_in()  # others may have waited for this one
            raise

    def refusal(self, caller: str, amount: int = 1) -> Overloaded:
        """Return what is said to a caller for whom there is no room, and when to come back."""
        return Overloaded(self._sentence, retry_after_s=self.turn_s(caller, amount))

    def turn_s(self, caller: str, amount: int = 1, *, is_noted: bool = True) -> int:
        """Return in how many seconds it is a caller's turn, which it gets unless not noted."""
        if self.num_held == 0:
            return 1
        return self._turnover.turn_s(
            caller,
            amount,
            lacking=max(1, self.num_held + amount - self.most),
            held=self.num_held,
            num_callers=len(self._by_caller),
            is_noted=is_noted,
        )

    def held_by(self, caller: str) -> int:
        """Return how much a caller has."""
        return self._by_caller.get(caller, 0)

    def _claimed(self, caller: str, amount: int) -> Permit:
        claim = Permit(self, caller)
        self._add(claim, amount)
        return claim

    def _add(self, guest: Holder, amount: int) -> None:
        if not self.num_held:
            self._turnover.begin()
        own = self._guests.setdefault(guest.caller, {})
        own[guest] = own.get(guest, 0) + amount
        self._count(guest.caller, amount)
        self.num_held += amount

    def _count(self, caller: str, amount: int) -> None:
        before = self._by_caller[caller]
        self._by_caller[caller] = after = before + amount
        if before:
            alike = self._by_amount[before]
            del alike[caller]
            if not alike:
                del self._by_amount[before]
        if after:
            self._by_amount.setdefault(after, {})[caller] = None

    def _let_in(self) -> None:
        """Give those their parts who wait, and for whom there is room in turn."""
        while self._waiting:
            caller = min(self._waiting, key=self.held_by)
            line = self._waiting[caller]
            turn, amount = line[0]
            if not turn.done():  # or nobody waits for it any more
                if not self.fits(caller, amount):
                    return
                turn.set_result(self._claimed(caller, amount))
            line.popleft()
            if not line:
                del self._waiting[caller]

    def _who_leaves(self, newcomer: Holder, wanted: int) -> Holder | None:
        """Return one that can leave, of whoever has most; of several, who came first."""
        own, num_looks = self._guests.get(newcomer.caller, {}), LOOKS
        for held in sorted(self._by_amount, reverse=True):
            if held < wanted or not num_looks:
                break
            for other in list(islice(self._by_amount[held], num_looks)):
                num_looks -= 1
                if other != newcomer.caller and (guest := self._idle(other, held > wanted)):
                    return guest
                self._by_amount[held][other] = self._by_amount[held].pop(other)
        return next((g for g in islice(own, LOOKS) if g.is_idle and g is not newcomer), None)

    def make_way(self) -> bool:
        """Let an idle guest of whoever has most leave; False if there is none."""
        for held in sorted(self._by_amount, reverse=True):
            for caller in list(islice(self._by_amount[held], LOOKS)):
                if guest := self._idle(caller, or_can_leave=False):
                    self.give_back(guest)
                    guest.leave()
                    return True
        return False

    def _idle(self, caller: str, or_can_leave: bool) -> Holder | None:
        """Return who came first of a caller's that are idle; who is looked at in vain comes last.

        So nobody who has many that are busy makes others wait for long looks.
        """
        own = self._guests[caller]
        for guest in list(islice(own, LOOKS)):
            if guest.is_idle or (or_can_leave and guest.can_leave):
                return guest
            own[guest] = own.pop(guest)
        return None
