"""Tells systemd how the service is, by its datagrams; elsewhere, nothing happens.

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
    """Sends what there is to say; nobody is waited for.

    Args:
        environ: says where to; without ``NOTIFY_SOCKET``, nowhere.

    Attributes:
        watchdog_s: how often a service must say that it lives, before systemd ends it; None where
            systemd does not mind.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s: float | None = None
        period = environ.get("WATCHDOG_USEC", "")
        whose = environ.get("WATCHDOG_PID", str(os.getpid()))
        if self._address and period.isdecimal() and int(period) and whose == str(os.getpid()):
            self.watchdog_s = int(period) / 1e6

    @property
    def is_heard(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """Send some lines together."""
        if sys.platform != "win32" and self._address:
            is_abstract = self._address.startswith("@")
            address = f"\0{self._address[1:]}" if is_abstract else self._address
            with (
                contextlib.suppress(OSError),  # nobody listens, or there is no file to be had
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
            ):
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)


def in_usec(seconds: float) -> int:
    """Return a span in systemd's unit."""
    return int(seconds * 1e6)


def reloading() -> tuple[str, str]:
    """Return the lines that say that a service reads its files again."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
