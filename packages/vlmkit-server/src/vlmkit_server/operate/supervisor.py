"""Watches the server's health for probes and for systemd.

It samples the state several times a second in the event loop, and stores it. Other threads read it:
if the last sample is old, the event loop hangs.
"""

import time

from vlmkit_server.exchange.service import Service
from vlmkit_server.operate.health import Status, readiness_of
from vlmkit_server.operate.health_listener import ProbeResult
from vlmkit_server.operate.notify import Notifier, in_usec, reloading

MAX_LAG_S = 30.0  # without a turn of the event loop, before the server counts as dead
EXTEND_S = 60.0  # extension of systemd's startup timeout while models load
EXTEND_EACH_S = 10.0


class Supervisor:
    """Watches a service.

    Args:
        service: the service.
        notifier: notifies systemd.

    Attributes:
        status: the readiness at the last sample.
    """

    def __init__(self, service: Service, notifier: Notifier) -> None:
        self._service = service
        self._notifier = notifier
        self._seen_s = time.monotonic()
        self._watchdog_s = self._extended_s = 0.0
        self._was_ready = self._is_ending = False
        self._sent_status = ""
        self.status: Status = "loading"

    # In the event loop's thread.

    def sample(self) -> None:
        """Sample the state, and notify systemd of changes."""
        self._seen_s = now_s = time.monotonic()
        self.status = readiness_of(self._service, "")
        notifier = self._notifier
        if not notifier.is_enabled:
            return
        lines = []
        if self.status in ("ready", "full") and not self._was_ready:
            self._was_ready = True
            lines.append("READY=1")
        if not self._was_ready and now_s - self._extended_s > EXTEND_EACH_S:
            self._extended_s = now_s
            lines.append(f"EXTEND_TIMEOUT_USEC={in_usec(EXTEND_S)}")
        is_due = notifier.watchdog_s and now_s - self._watchdog_s > notifier.watchdog_s / 3
        if is_due and self.is_alive:
            self._watchdog_s = now_s
            lines.append("WATCHDOG=1")
        if self.status != self._sent_status:
            self._sent_status = self.status
            lines.append(f"STATUS={self.status}")
        if lines:
            notifier.send(*lines)

    def reload(self) -> None:
        """Notify systemd that files are being reloaded."""
        self._notifier.send(*reloading())

    def reloaded(self) -> None:
        """Notify systemd that the reload is over."""
        self._notifier.send("READY=1")

    def stop(self, within_s: float) -> None:
        """Notify systemd that the server ends within some time."""
        self._notifier.send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={in_usec(within_s)}")

    def end(self) -> None:
        """Record that the event loop ends, so that its silence is expected."""
        self._is_ending = True
        self.status = "draining"

    # In any thread.

    def live(self) -> ProbeResult:
        """Return the liveness of the process."""
        return ProbeResult(True, "ok") if self.is_alive else ProbeResult(False, "failed")

    def ready(self) -> ProbeResult:
        """Return whether work is accepted."""
        status = self.status if self.is_alive else "failed"
        return ProbeResult(status == "ready", status)

    @property
    def sampled_s(self) -> float:
        """When the event loop took the last sample, by the monotonic clock."""
        return self._seen_s

    @property
    def is_alive(self) -> bool:
        """Whether the event loop runs, and no engine failed for good."""
        is_hanging = time.monotonic() - self._seen_s > MAX_LAG_S and not self._is_ending
        has_failed = self._service.fleet.recovery.error is not None
        return not (is_hanging or has_failed or self._needs_new_process)

    @property
    def _needs_new_process(self) -> bool:
        return any(model.needs_new_process for model in self._service.models.values())
