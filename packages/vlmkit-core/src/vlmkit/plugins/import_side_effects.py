"""What a plugin must leave as it found it while it is imported and registers.

What can be put back is: the working folder, signal handlers, the log's handlers, the standard
streams. What others may need by now is left: ``sys.path``, the environment, threads. Either is
told. What is printed to standard output goes to standard error, since output may be somebody's
JSON. A plugin has the rights of the process: what it changes inside of a library, or ends by
``os._exit``, nothing here can undo.
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
"""Those that programs take; others are not looked at."""


class ImportSideEffects:
    """Looks at the process before, and again afterwards.

    Args:
        aside: what stands in for standard output.

    Attributes:
        remarks: what was changed, as the ends of sentences about the plugin.
        was_interrupted: whether somebody pressed Ctrl-C meanwhile; what else raises
            KeyboardInterrupt is the plugin.
    """

    def __init__(self, aside: StdoutGuard) -> None:
        self._aside = aside
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
        self._aside.begin(self._threads)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for look in (
            *(self._look_at_streams, self._look_at_folder, self._look_at_signals),
            *(self._look_at_log, self._look_at_path, self._look_at_environment),
            self._look_at_threads,
        ):
            look()

    def _interruptible(self, handlers: Handlers) -> Handlers:
        """Note Ctrl-C, where it would raise KeyboardInterrupt; return the handlers to keep."""

        def note(number: int, frame: FrameType | None) -> None:
            self.was_interrupted = True
            signal.default_int_handler(number, frame)

        self._note: Callable[[int, FrameType | None], None] | None = None
        if handlers.get(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, note)
            self._note = note
        return handlers

    def _look_at_streams(self) -> None:
        output, errors = self._streams
        if sys.stdout is not output or sys.stderr is not errors:
            self.remarks.append("put others in place of the standard streams, which are back")
        sys.stdout, sys.stderr = output, errors
        if self._aside.was_used:
            self.remarks.append("printed to standard output; it went to standard error")

    def _look_at_folder(self) -> None:
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
            self.remarks.append("changed the working folder, which was changed back")

    def _look_at_signals(self) -> None:
        changed = []
        for number, handler in _handlers().items():
            before = self._handlers.get(number)
            is_ours = number == signal.SIGINT and self._note is not None
            if handler is not (self._note if is_ours else before):
                changed.append(signal.Signals(number).name)
            if handler is not before and before is not None:
                signal.signal(number, before)
        if changed:
            self.remarks.append(f"took signals, which were taken back: {_listed(changed)}")

    def _look_at_log(self) -> None:
        handlers, level = self._log
        if logging.root.handlers != handlers or logging.root.level != level:
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
            self.remarks.append("configured the log of the whole process, which was undone")

    def _look_at_path(self) -> None:
        if sys.path != self._path:
            self.remarks.append("changed sys.path, where all modules are looked for")

    def _look_at_environment(self) -> None:
        now = dict(os.environ)
        names = self._environ.keys() | now.keys()
        if changed := [n for n in names if now.get(n) != self._environ.get(n)]:
            self.remarks.append(f"changed the environment: {_listed(changed)}")

    def _look_at_threads(self) -> None:
        started = [t.name for t in threading.enumerate() if t not in self._threads]
        if started:
            self.remarks.append(f"started threads: {_listed(started)}")


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it is gone
        return None


def _handlers() -> Handlers:
    """Return the handlers of signals, which only the main thread has and may change."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = (getattr(signal, name, None) for name in SIGNALS)
    return {number: signal.getsignal(number) for number in known if number is not None}


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(sorted(names)), 200)
