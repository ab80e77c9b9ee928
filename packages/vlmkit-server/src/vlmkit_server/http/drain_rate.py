"""How fast a room empties, and hence when to come back: worked out, never a constant.

Knows amounts and times; who holds what is the room's business.
"""

import math
import time
from collections import deque
from collections.abc import Callable

LAST = 64  # ends that tell how fast it goes; those before are of another time
LONGEST_S = 3600
MOST_CALLERS = 1024  # who were told when to come and have not come yet


class DrainRate:
    """Notes what is given back, and tells callers when there is room for them.

    Callers who are refused are given turns one after the other, as fast as the room empties and the
    callers share it: who was told a time finds room then, and all do not come at once. It is the
    virtual scheduling of GCRA (ITU-T I.371), with a rate that is measured.

    Args:
        now_s: tells the time in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._ends: deque[tuple[float, int]] = deque(maxlen=LAST)
        self._began_s = now_s()
        self._turns: dict[str, float] = {}  # when the last one of a caller was told to come

    def begin(self) -> None:
        """Note that the room was empty until now: what was before tells nothing."""
        self._ends.clear()
        self._began_s = self._now_s()

    def end(self, amount: int) -> None:
        """Note that so much was given back."""
        self._ends.append((self._now_s(), amount))

    @property
    def rate(self) -> float:
        """What is given back in a second; where nothing was yet, as if something were now."""
        now_s = self._now_s()
        if len(self._ends) < LAST:
            first_s, amount = self._began_s, sum(each for _, each in self._ends)
        else:
            first_s, amount = (
                self._ends[0][0],
                sum(each for _, each in self._ends) - self._ends[0][1],
            )
        return max(1, amount) / max(now_s - first_s, 1e-3)

    def turn_s(
        self,
        caller: str,
        amount: int,
        *,
        lacking: int,
        held: int,
        num_callers: int,
        is_noted: bool = True,
    ) -> int:
        """Return in how many whole seconds a caller should come back; at least one.

        Args:
            caller: who was refused.
            amount: what it wants.
            lacking: what must be given back before.
            held: what is held now: when all of it was given back, there is room for anybody.
            num_callers: how many share what is given back.
            is_noted: whether it is the caller's turn then, so that the next one is later.
        """
        now_s, rate = self._now_s(), self.rate
        own_turn_s = self._turns.get(caller, 0.0) + amount * num_callers / rate
        turn_s = min(max(now_s + lacking / rate, own_turn_s), now_s + max(lacking, held) / rate)
        turn_s = min(turn_s, now_s + LONGEST_S)
        if len(self._turns) >= MOST_CALLERS:
            self._turns = {who: when for who, when in self._turns.items() if when > now_s}
        if is_noted and len(self._turns) < MOST_CALLERS:
            self._turns[caller] = turn_s
        return min(max(1, math.ceil(turn_s - now_s)), LONGEST_S)
