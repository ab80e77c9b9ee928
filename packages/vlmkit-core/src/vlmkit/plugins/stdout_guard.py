"""Standard output while plugins are loaded: what they print goes to standard error.

Output may be somebody's JSON. Threads that were there before go on to use it.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class StdoutGuard:
    """Stands in for standard output.

    It must outlive every thread that may have been printing through it when it was taken away:
    Python itself does not keep it while it prints. So whoever loads plugins holds on to it.

    Attributes:
        was_used: whether what is loaded now has printed.
    """

    def __init__(self) -> None:
        self._output: Any = sys.stdout
        self._others = _idents(threading.enumerate())
        self._earlier: set[int | None] = set()
        self._is_over = False
        self.was_used = False

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Be standard output, if there is one."""
        if self._output is not None:
            sys.stdout = self
        try:
            yield
        finally:
            sys.stdout = self._output
            self._is_over = True

    def begin(self, threads: Iterable[threading.Thread]) -> None:
        """Look out for what is printed from now on, but by threads that are there already."""
        self._earlier = _idents(threads)
        self.was_used = False

    def write(self, text: str) -> int:
        """Write to where it belongs."""
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
    """Return the threads but this one, which is where plugins are loaded."""
    return {thread.ident for thread in threads} - {threading.get_ident()}
