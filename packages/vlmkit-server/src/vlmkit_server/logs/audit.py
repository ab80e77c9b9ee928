"""The audit log: security-relevant actions and who did them, one JSON object a line.

Refusals are bounded: for each address and kind, one line is written per minute, then the number of
further ones. It never contains a secret, or the content of a file or request.
"""

import json
import threading
import time
from typing import Any

from vlmkit_server.logs.format import iso
from vlmkit_server.logs.line_file import LineFile

EVERY_S = 60.0
MAX_REFUSED = 1024  # kinds of refusals that are counted separately in that time

Refusal = tuple[str, int, str]
"""The address, the status, and the id of the key, if it was valid."""


class AuditLog:
    """Writes actions to the audit log, if there is a file for it.

    Args:
        path: the file; none when empty.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = LineFile(path, "server.audit_log") if path else None
        self._lock = threading.Lock()
        self._refused: dict[Refusal, int] = {}
        self._since_s = time.monotonic()

    @property
    def is_on(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def note(self, event: str, **facts: Any) -> None:
        """Write one action.

        Args:
            event: the action.
            facts: who did it, and to what; None values are left out.
        """
        if self._file is not None:
            given = {name: value for name, value in facts.items() if value is not None}
            line = {"time": iso(time.time()), "event": event, **given}
            self._file.add(json.dumps(line).encode())

    def refuse(self, address: str, status: int, key: str | None, **facts: Any) -> None:
        """Write that a request without a valid key, or without permission, was refused."""
        refusal = (address, status, key or "")
        with self._lock:
            if time.monotonic() - self._since_s >= EVERY_S:
                self._sum_up()
            if refusal not in self._refused and len(self._refused) >= MAX_REFUSED:
                refusal = ("others", status, "")
            is_first = refusal not in self._refused
            self._refused[refusal] = self._refused.get(refusal, 0) + 1
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
        """Write the counted refusals, and continue in the file with the log's name."""
        if self._file is not None:
            with self._lock:
                self._sum_up()
            self._file.reopen()

    def close(self) -> None:
        """Write what is left, and close the file; a second call does nothing."""
        if self._file is not None:
            with self._lock:
                self._sum_up()
            self._file.close()
            self._file = None
