"""Notifies systemd of the service's state by datagrams; does nothing on other systems.

The protocol is that of ``sd_notify(3)``: lines of ``NAME=value`` to the socket that
``NOTIFY_SOCKET`` names, a path or an abstract address.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping


class Notifier:
    """Sends notifications without waiting.

    Args:
        environ: the environment; without ``NOTIFY_SOCKET``, nothing is sent.

    Attributes:
        watchdog_s: the interval in which systemd expects a sign of life; None without a watchdog.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s: float | None = None
        period = environ.get("WATCHDOG_USEC", "")
        watched_pid = environ.get("WATCHDOG_PID", str(os.getpid()))
        if self._address and period.isdecimal() and int(period) and watched_pid == str(os.getpid()):
            self.watchdog_s = int(period) / 1e6

    @property
    def is_enabled(self) -> bool:
        """Whether systemd expects notifications."""
        return bool(self._address)

    def send(self, *lines: str) -> None:
        """Send some lines in one datagram."""
        if sys.platform != "win32" and self._address:
            is_abstract = self._address.startswith("@")
            address = f"\0{self._address[1:]}" if is_abstract else self._address
            with (
                contextlib.suppress(OSError),  # no listener, or no free file descriptor
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
            ):
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)


def in_usec(seconds: float) -> int:
    """Return a duration in microseconds, systemd's unit."""
    return int(seconds * 1e6)


def reloading() -> tuple[str, str]:
    """Return the lines that report that a service reloads its files."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
