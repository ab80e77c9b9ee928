"""Measures how fast a quota empties, and derives the Retry-After of refused callers from that.

It knows amounts and times. The quota knows which caller holds what.
"""

import math
import time
from collections import deque
from collections.abc import Callable

NUM_RELEASES = 64  # recent releases that the rate is measured over
MAX_RETRY_S = 3600
MAX_CALLERS = 1024  # with a reserved slot in the future


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
