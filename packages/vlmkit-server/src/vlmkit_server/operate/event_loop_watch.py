"""Reports code that blocks the event loop, and the API that it belongs to.

While the event loop is blocked, no client is answered. A thread of its own compares the time of the
loop's last sample with the clock. The log gets lines of code alone, and nothing that a client sent.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping

from vlmkit.running.faults.attribution import ComponentNames
from vlmkit.running.faults.watchdog import stack_of
from vlmkit_server.interfaces.api import Api

log = logging.getLogger(__name__)

BLOCKED_S = 2.0
INTERVAL_S = 0.5


class EventLoopWatch:
    """Watches the event loop of the thread that starts it.

    Args:
        sampled_s: returns when the loop took its last sample, by the monotonic clock.
        packages: the modules and packages of APIs, and the names of the APIs in the log.
    """

    def __init__(self, sampled_s: Callable[[], float], packages: Mapping[str, str]) -> None:
        self._sampled_s = sampled_s
        self._packages = packages
        self._thread: int | None = None
        self._is_stopped = threading.Event()

    def start(self) -> None:
        """Start to watch the loop of this thread."""
        self._thread = threading.get_ident()
        threading.Thread(target=self._run, name="vlmkit-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_stopped.set()

    def _run(self) -> None:
        reported_s, due_s = 0.0, time.monotonic() + INTERVAL_S
        while not self._is_stopped.wait(INTERVAL_S):
            now_s, sampled_s = time.monotonic(), self._sampled_s()
            # If this thread was late, too, the whole process was held, and not the loop.
            was_late, due_s = now_s - due_s > INTERVAL_S, now_s + INTERVAL_S
            if sampled_s != reported_s and now_s - sampled_s > BLOCKED_S and not was_late:
                reported_s = sampled_s
                self._report(now_s - sampled_s)

    def _report(self, blocked_s: float) -> None:
        owner = self._owner()
        log.warning(
            "the event loop is blocked for %.1f s%s; stack:\n%s",
            *(blocked_s, f" by {owner}" if owner else "", stack_of(self._thread)),
        )

    def _owner(self) -> str:
        """Return the API with the innermost function that runs; empty if there is none."""
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001 - there is no other way
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            while module:
                if module in self._packages:
                    return self._packages[module]
                module = module.rpartition(".")[0]
            frame = frame.f_back
        return ""


def packages_of(apis: Mapping[str, Api], names: ComponentNames) -> dict[str, str]:
    """Return the name of each API by its module, and by the package of that."""
    modules = {type(api).__module__: names.of("api", name) for name, api in apis.items()}
    packages = {module.rpartition(".")[0]: owner for module, owner in modules.items()}
    return packages | modules
