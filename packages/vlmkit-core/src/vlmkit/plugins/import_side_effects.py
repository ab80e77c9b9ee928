"""Detects process-wide side effects of importing and registering a plugin, and undoes some.

It restores the working folder, signal handlers, handlers of the root logger and the standard
streams. It does not undo changes of ``sys.path``, the environment and threads, which other code may
need by then. It reports both. Prints to standard output go to standard error, because the output
may be JSON for another program. It cannot undo changes inside libraries, or a call of ``os._exit``.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from vlmkit.kit.one_line import one_line
from vlmkit.plugins.stdout_guard import StdoutGuard

Handlers = dict[int, Any]
SIGNALS = (
    *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK", "SIGCHLD", "SIGPIPE"),
    *("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTSTP", "SIGCONT", "SIGWINCH"),
)
"""The signals that programs commonly handle; others are not checked."""


class ImportSideEffects:
    """Records the state of the process on entry, and compares it on exit.

    Args:
        stdout_guard: replaces standard output while plugins are loaded.

    Attributes:
        remarks: the changes, as the ends of sentences about the plugin.
        was_interrupted: whether the user pressed Ctrl-C meanwhile; any other KeyboardInterrupt
            comes from the plugin.
    """

    def __init__(self, stdout_guard: StdoutGuard) -> None:
        self._stdout_guard = stdout_guard
        self.remarks: list[str] = []
        self.was_interrupted = False

    def __enter__(self) -> Self:
        self._folder = _folder()
        self._path = list(sys.path)
        self._environ = dict(os.environ)
        self._threads = set(threading.enumerate())
        self._log = (list(logging.root.handlers), logging.root.level)
        self._handlers = self._interruptible(_handlers())
        self._streams = (sys.stdout, sys.stderr)
        self._stdout_guard.begin(self._threads)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for check in (
            *(self._restore_streams, self._restore_folder, self._restore_signals),
            *(self._restore_log, self._check_path, self._check_environment),
            self._check_threads,
        ):
            check()

    def _interruptible(self, handlers: Handlers) -> Handlers:
        """Record Ctrl-C if it would raise KeyboardInterrupt; return the handlers to restore."""

        def note(number: int, frame: FrameType | None) -> None:
            self.was_interrupted = True
            signal.default_int_handler(number, frame)

        self._note: Callable[[int, FrameType | None], None] | None = None
        if handlers.get(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, note)
            self._note = note
        return handlers

    def _restore_streams(self) -> None:
        output, errors = self._streams
        if sys.stdout is not output or sys.stderr is not errors:
            self.remarks.append("replaced the standard streams, which were restored")
        sys.stdout, sys.stderr = output, errors
        if self._stdout_guard.was_used:
            self.remarks.append("printed to standard output; it went to standard error")

    def _restore_folder(self) -> None:
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
            self.remarks.append("changed the working folder, which was restored")

    def _restore_signals(self) -> None:
        changed = []
        for number, handler in _handlers().items():
            before = self._handlers.get(number)
            is_ours = number == signal.SIGINT and self._note is not None
            if handler is not (self._note if is_ours else before):
                changed.append(signal.Signals(number).name)
            if handler is not before and before is not None:
                signal.signal(number, before)
        if changed:
            self.remarks.append(f"set signal handlers, which were restored: {_listed(changed)}")

    def _restore_log(self) -> None:
        handlers, level = self._log
        if logging.root.handlers != handlers or logging.root.level != level:
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
            self.remarks.append("configured the root logger, which was restored")

    def _check_path(self) -> None:
        if sys.path != self._path:
            self.remarks.append("changed sys.path, which affects all imports")

    def _check_environment(self) -> None:
        now = dict(os.environ)
        names = self._environ.keys() | now.keys()
        if changed := [n for n in names if now.get(n) != self._environ.get(n)]:
            self.remarks.append(f"changed the environment: {_listed(changed)}")

    def _check_threads(self) -> None:
        started = [t.name for t in threading.enumerate() if t not in self._threads]
        if started:
            self.remarks.append(f"started threads: {_listed(started)}")


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was deleted
        return None


def _handlers() -> Handlers:
    """Return the signal handlers; empty outside the main thread, which alone can set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = (getattr(signal, name, None) for name in SIGNALS)
    return {number: signal.getsignal(number) for number in known if number is not None}


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(sorted(names)), 200)
