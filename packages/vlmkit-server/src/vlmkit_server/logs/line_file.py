"""Log files to which one process appends lines, with support for log rotation.

Log rotation moves the file and sends SIGHUP; the file is then opened again. If a line cannot be
written, for example on a full disk, an error is logged, and the server continues.
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
    """Appends lines synchronously; the system has a line when ``add`` returns.

    Args:
        path: the file, which is created with access for its owner alone.
        setting: the setting that names it, for errors.

    Raises:
        ConfigError: the file cannot be opened.
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
        """Append one line, given without its end."""
        self._write(line + b"\n")

    def _write(self, content: bytes) -> None:
        with self._lock:
            try:
                if os.write(self._file, content) != len(content):
                    raise OSError(None, "there is no room for it")
            except OSError as error:
                log.error("%s: lines lost: %s", self._path.name, error.strerror)  # noqa: TRY400

    def reopen(self) -> None:
        """Continue in the file with the log's name, or in the previous one if that fails."""
        with self._lock:
            try:
                new = self._opened()
            except OSError as error:
                text = "%s: reopen failed, keeping the previous file: %s"
                log.error(text, self._path.name, error.strerror)  # noqa: TRY400
                return
            os.close(self._file)
            self._file = new

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class BufferedLineFile(LineFile):
    """Appends lines in a thread of its own, so that a slow disk delays no request.

    Args:
        path: as for :class:`LineFile`.
        setting: as for :class:`LineFile`.
    """

    def __init__(self, path: str, setting: str) -> None:
        super().__init__(path, setting)
        self._lines: deque[bytes] = deque()
        self._num_lost = 0
        self._has_lines = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def add(self, line: bytes) -> None:
        """Queue one line."""
        if self._thread is None and not self._is_over:
            self._thread = threading.Thread(target=self._run, name="vlmkit-log", daemon=True)
            self._thread.start()
        if len(self._lines) >= MAX_UNWRITTEN:
            self._num_lost += 1
            return
        self._lines.append(line)
        self._has_lines.set()

    def close(self) -> None:
        """Write what is left, and close the file; a second call does nothing."""
        self._is_over = True
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        super().close()

    def _run(self) -> None:
        while not self._is_over:
            self._has_lines.wait()
            self._has_lines.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._lines:
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), 1000))]
            self._write(b"\n".join(lines) + b"\n")
        if self._num_lost:
            log.error("%s: disk too slow, lines lost: %d", self._path.name, self._num_lost)
            self._num_lost = 0
