"""A file to which lines are added, by one process, until somebody moves it away.

Whoever rotates logs moves the file and sends SIGHUP; it is opened again then. A line that cannot be
written, on a full disk, is counted and told in the server's log; nothing else stops for it.
"""

import logging
import os
import threading
from collections import deque
from pathlib import Path

from vlmkit.errors import ConfigError

log = logging.getLogger(__name__)

MAX_UNWRITTEN = 2**16  # lines, of some hundred bytes


class LineFile:
    """Adds lines at once; they are with the system when that returns.

    Args:
        path: of the file, which is made if there is none, for its owner alone.
        setting: that names it, for an error.

    Raises:
        ConfigError: it cannot be opened.
    """

    def __init__(self, path: str, setting: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        try:
            self._file = self._opened()
        except OSError as error:
            raise ConfigError(
                f"{setting} {path!r} cannot be written: {error.strerror}",
                hint="name a file in a folder that this user may write to",
            ) from error

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, line: bytes) -> None:
        """Write one line, which has no end yet."""
        self._write(line + b"\n")

    def _write(self, content: bytes) -> None:
        with self._lock:
            try:
                if os.write(self._file, content) != len(content):
                    raise OSError(None, "there is no room for it")
            except OSError as error:
                log.error("%s has lost lines: %s", self._path.name, error.strerror)  # noqa: TRY400

    def reopen(self) -> None:
        """Go on in the file that has the name now; in that of before where there can be none."""
        with self._lock:
            try:
                new = self._opened()
            except OSError as error:
                log.error("%s is not opened again: %s", self._path.name, error.strerror)  # noqa: TRY400
                return
            os.close(self._file)
            self._file = new

    def close(self) -> None:
        """Let the file go; harmless when done twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class LateLineFile(LineFile):
    """Adds lines in a thread of its own, so that a slow disk holds nobody up.

    Args:
        path: as above.
        setting: as above.
    """

    def __init__(self, path: str, setting: str) -> None:
        super().__init__(path, setting)
        self._lines: deque[bytes] = deque()
        self._num_lost = 0
        self._bell = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def add(self, line: bytes) -> None:
        """Have one line written soon."""
        if self._thread is None and not self._is_over:
            self._thread = threading.Thread(target=self._run, name="vlmkit-log", daemon=True)
            self._thread.start()
        if len(self._lines) >= MAX_UNWRITTEN:
            self._num_lost += 1
            return
        self._lines.append(line)
        self._bell.set()

    def close(self) -> None:
        """Write what is left, and let the file go; harmless when done twice."""
        self._is_over = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        super().close()

    def _run(self) -> None:
        while not self._is_over:
            self._bell.wait()
            self._bell.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._lines:
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), 1000))]
            self._write(b"\n".join(lines) + b"\n")
        if self._num_lost:
            log.error("%s is too slow, and lost lines: %d", self._path.name, self._num_lost)
            self._num_lost = 0
