"""Redirects prints of plugins to standard error while they are loaded.

Standard output may be JSON for another program. Threads that existed before keep using it.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class StdoutGuard:
    """Replaces standard output.

    It must outlive every thread that may be printing through it when it is removed, because Python
    holds no reference while it prints. The code that loads plugins therefore keeps it.

    Attributes:
        was_used: whether the plugin being loaded has printed.
    """

    def __init__(self) -> None:
        self._output: Any = sys.stdout
        self._others = _idents(threading.enumerate())
        self._earlier: set[int | None] = set()
        self._is_over = False
        self.was_used = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace standard output inside the context, if there is one."""
        if self._output is not None:
            sys.stdout = self
        try:
            yield
        finally:
            sys.stdout = self._output
            self._is_over = True

    def begin(self, threads: Iterable[threading.Thread]) -> None:
        """Start to detect prints, except those of existing threads."""
        self._earlier = _idents(threads)
        self.was_used = False

    def write(self, text: str) -> int:
        """Write to standard output or standard error, depending on the thread."""
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _stream(self) -> Any:
        ident = threading.get_ident()
        if self._is_over or ident in self._others:
            return self._output
        if ident not in self._earlier:
            self.was_used = True
        return sys.stderr


def _idents(threads: Iterable[threading.Thread]) -> set[int | None]:
    """Return the ids of all threads except this one, which loads the plugins."""
    return {thread.ident for thread in threads} - {threading.get_ident()}
