"""Room that strangers share: who has most of it makes way when somebody with less comes.

So one who takes all of it keeps nobody out, and where everybody is one, as behind a proxy, all of
it can be used. What it is room for, and what it means to leave, is its users' business.
"""

from collections import Counter
from typing import Protocol


class Guest(Protocol):
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


class FairRoom:
    """A bound, and who has how much of it.

    Args:
        most: the bound.

    Attributes:
        num_held: how much is taken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_held = 0
        self._by_caller: Counter[str] = Counter()
        self._guests: dict[str, dict[Guest, int]] = {}

    def take(self, guest: Guest, amount: int) -> bool:
        """Let a guest have so much more, if need be of what others have; False if it may not.

        Nobody leaves for a caller who would have as much as he has, but idle ones of that caller's.
        """
        while self.num_held + amount > self.most:
            wanted = self._by_caller[guest.caller] + amount
            other = self._who_leaves(guest, wanted)
            if other is None:
                return False
            self.give_back(other)
            other.leave()
        own = self._guests.setdefault(guest.caller, {})
        own[guest] = own.get(guest, 0) + amount
        self._by_caller[guest.caller] += amount
        self.num_held += amount
        return True

    def give_back(self, guest: Guest) -> None:
        """Take back all that a guest has; nothing happens if that is nothing."""
        own = self._guests.get(guest.caller, {})
        if guest in own:
            amount = own.pop(guest)
            self.num_held -= amount
            self._by_caller[guest.caller] -= amount
            if not own:
                del self._guests[guest.caller], self._by_caller[guest.caller]

    def _who_leaves(self, newcomer: Guest, wanted: int) -> Guest | None:
        """Return who came first of those that can leave, of whoever has most."""
        for other, held in self._by_caller.most_common():
            if other == newcomer.caller or held <= wanted:
                break
            for guest in self._guests[other]:
                if guest.can_leave:
                    return guest
        own = self._guests.get(newcomer.caller, {})
        return next((guest for guest in own if guest.is_idle and guest is not newcomer), None)
