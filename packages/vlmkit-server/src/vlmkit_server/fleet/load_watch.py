"""Tells of models that take long to load, and of one that takes too long."""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

FIRST_TOLD_S = 300.0


class LoadWatch:
    """Watches one load at a time. Is called in the event loop's thread.

    Args:
        timeout_s: how long a load may take; for ever when None.
        give_up: called with the model's name when one takes longer.
    """

    def __init__(self, timeout_s: float | None, give_up: Callable[[str], None]) -> None:
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self, name: str) -> None:
        """Watch the load of a model."""
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(FIRST_TOLD_S, self._tell, name, FIRST_TOLD_S)]
        if self._timeout_s is not None:
            self._timers.append(loop.call_later(self._timeout_s, self._give_up, name))

    def end(self) -> None:
        """Watch it no more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _tell(self, name: str, age_s: float) -> None:
        """Say it, and again when it has taken twice as long."""
        log.warning("model %r is being loaded for %g s by now", name, age_s)
        loop = asyncio.get_running_loop()
        self._timers[0] = loop.call_later(age_s, self._tell, name, 2 * age_s)
