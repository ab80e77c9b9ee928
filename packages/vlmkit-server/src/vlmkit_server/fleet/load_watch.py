"""Logs slow loads of models, and reports one that exceeds its timeout."""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

FIRST_WARNING_S = 300.0


class LoadWatch:
    """Watches one load at a time. It is used in the event loop's thread.

    Args:
        timeout_s: how long a load may take; unlimited when None.
        give_up: called with the model's name after the timeout.
    """

    def __init__(self, timeout_s: float | None, give_up: Callable[[str], None]) -> None:
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self, name: str) -> None:
        """Watch the load of a model."""
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(FIRST_WARNING_S, self._warn, name, FIRST_WARNING_S)]
        if self._timeout_s is not None:
            self._timers.append(loop.call_later(self._timeout_s, self._give_up, name))

    def end(self) -> None:
        """Stop watching it."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _warn(self, name: str, age_s: float) -> None:
        """Log a warning, and again whenever the time has doubled."""
        log.warning("loading model %r has taken %g s so far", name, age_s)
        loop = asyncio.get_running_loop()
        self._timers[0] = loop.call_later(age_s, self._warn, name, 2 * age_s)
