"""How the server is, for those who look on: a health listener of its own, and systemd.

Looks whenever the event loop has a turn, several times a second, and keeps what it saw. Others read
that in their own threads: one who finds that nothing was seen for long knows that the loop hangs.
"""

import time

from vlmkit_server.exchange.service import Service
from vlmkit_server.operate.health import Status, readiness_of
from vlmkit_server.operate.health_listener import Word
from vlmkit_server.operate.notify import Notifier, in_usec, reloading

STILL_S = 30.0  # without a turn of the event loop, before the server counts as dead
EXTEND_S = 60.0  # that systemd is asked to wait for while models are loaded
EXTEND_EACH_S = 10.0


class Supervisor:
    """Looks at a service.

    Args:
        service: what is looked at.
        notifier: tells systemd.

    Attributes:
        status: whether work was taken when it last looked, or why not.
    """

    def __init__(self, service: Service, notifier: Notifier) -> None:
        self._service = service
        self._notifier = notifier
        self._seen_s = time.monotonic()
        self._fed_s = self._extended_s = 0.0
        self._was_ready = self._is_ending = False
        self._said = ""
        self.status: Status = "loading"

    # In the event loop's thread.

    def look(self) -> None:
        """See how things are, and tell what is new."""
        self._seen_s = now_s = time.monotonic()
        self.status = readiness_of(self._service, "")
        notifier = self._notifier
        if not notifier.is_heard:
            return
        lines = []
        if self.status in ("ready", "full") and not self._was_ready:
            self._was_ready = True
            lines.append("READY=1")
        if not self._was_ready and now_s - self._extended_s > EXTEND_EACH_S:
            self._extended_s = now_s
            lines.append(f"EXTEND_TIMEOUT_USEC={in_usec(EXTEND_S)}")
        is_due = notifier.watchdog_s and now_s - self._fed_s > notifier.watchdog_s / 3
        if is_due and self.is_alive:
            self._fed_s = now_s
            lines.append("WATCHDOG=1")
        if self.status != self._said:
            self._said = self.status
            lines.append(f"STATUS={self.status}")
        if lines:
            notifier.tell(*lines)

    def reload(self) -> None:
        """Tell that files are read again."""
        self._notifier.tell(*reloading())

    def reloaded(self) -> None:
        """Tell that this is over."""
        self._notifier.tell("READY=1")

    def stop(self, within_s: float) -> None:
        """Tell that the server ends, some time from now at the latest."""
        self._notifier.tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={in_usec(within_s)}")

    def end(self) -> None:
        """Note that the event loop ends: it is not to be missed."""
        self._is_ending = True
        self.status = "draining"

    # In any thread.

    def live(self) -> Word:
        """Say whether the process is of use."""
        return Word(True, "ok") if self.is_alive else Word(False, "failed")

    def ready(self) -> Word:
        """Say whether work is taken."""
        status = self.status if self.is_alive else "failed"
        return Word(status == "ready", status)

    @property
    def is_alive(self) -> bool:
        """Whether the event loop had a turn, and no engine failed for good."""
        is_still = time.monotonic() - self._seen_s > STILL_S and not self._is_ending
        has_failed = self._service.fleet.recovery.error is not None
        return not (is_still or has_failed or self._is_doomed)

    @property
    def _is_doomed(self) -> bool:
        return any(model.needs_new_process for model in self._service.models.values())
