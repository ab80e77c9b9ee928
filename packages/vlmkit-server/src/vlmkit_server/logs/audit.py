"""The audit log: who did what of consequence, one JSON object a line.

Refusals are bounded: of one address and kind, one is written in a minute, and then how many more
there were. Never holds a secret, or what a file or a request held.
"""

import json
import threading
import time
from typing import Any

from vlmkit_server.logs.format import iso
from vlmkit_server.logs.line_file import LineFile

EVERY_S = 60.0
MAX_STRANGERS = 1024  # addresses that are told apart in that time

Stranger = tuple[str, int, str]
"""An address, the status that it got, and the key that it had, if it was one."""


class AuditLog:
    """Writes what is done, if there is a file for it.

    Args:
        path: of the file; none when empty.

    Raises:
        ConfigError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = LineFile(path, "server.audit_log") if path else None
        self._lock = threading.Lock()
        self._refused: dict[Stranger, int] = {}
        self._since_s = time.monotonic()

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self._file is not None

    def note(self, event: str, **facts: Any) -> None:
        """Write that something was done.

        Args:
            event: what.
            facts: who did it, to what; what is None is left out.
        """
        if self._file is not None:
            told = {name: value for name, value in facts.items() if value is not None}
            line = {"time": iso(time.time()), "event": event, **told}
            self._file.add(json.dumps(line).encode())

    def refuse(self, address: str, status: int, key: str | None, **facts: Any) -> None:
        """Write that somebody was refused who had no key, or whose key may not do what he asked."""
        stranger = (address, status, key or "")
        with self._lock:
            if time.monotonic() - self._since_s >= EVERY_S:
                self._sum_up()
            if stranger not in self._refused and len(self._refused) >= MAX_STRANGERS:
                stranger = ("others", status, "")
            is_first = stranger not in self._refused
            self._refused[stranger] = self._refused.get(stranger, 0) + 1
        if is_first:
            self.note("refused", address=address, status=status, key=key, **facts)

    def _sum_up(self) -> None:
        for (address, status, key), num in self._refused.items():
            if num > 1:
                more = num - 1
                self.note("refused", address=address, status=status, key=key or None, more=more)
        self._refused.clear()
        self._since_s = time.monotonic()

    def reopen(self) -> None:
        """Write what is known of refusals, and go on in the file that has the name now."""
        if self._file is not None:
            with self._lock:
                self._sum_up()
            self._file.reopen()

    def close(self) -> None:
        """Write what is left; harmless when done twice."""
        if self._file is not None:
            with self._lock:
                self._sum_up()
            self._file.close()
            self._file = None
