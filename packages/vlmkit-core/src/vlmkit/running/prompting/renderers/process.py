"""The server's side of one renderer: a process that builds one prompt at a time, and can be killed.

The process inherits no socket of the server, and no environment variable whose name looks like a
secret. It is no sandbox: code that takes it over has the rights of the server's user.
"""

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from vlmkit.errors import PromptNotMade, VlmkitError, WireError
from vlmkit.running.prompting.prompt_builder import BuiltPrompt
from vlmkit.running.prompting.renderers.messages import (
    CANCEL,
    Answer,
    ForeignError,
    Reply,
    built_prompt_of,
    read_answer,
    received_error,
)
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.wire.frames import Frame, write_frame

MODULE = "vlmkit.assembly.renderer"
START_S = 600.0  # for a tokenizer whose library takes minutes to import on a slow disk
CANCEL_S = 0.5  # to stop by itself, before it is killed: starting another one takes seconds
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
NOT_SECRET = frozenset({"TOKENIZERS_PARALLELISM"})


class Renderer:
    """A renderer process, started by the constructor and ready when :meth:`wait` returns.

    Args:
        plan: the text side that it builds.
        timeout_s: time for one prompt.
    """

    def __init__(self, plan: Frame, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._arena = SharedArena.create()
        self._lease: DecodeLease | None = None
        self._is_cancel_sent = False
        self._writing = threading.Lock()
        self._began_s = 0.0
        self._reason = ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-P", "-m", MODULE, self._arena.address],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server alone
            pass_fds=self._arena.inherited,
        )
        self._plan = plan

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the renderer is ready.

        Raises:
            VlmkitError: it cannot build its text side.
            PromptNotMade: it ended.
        """
        clock = threading.Timer(START_S, self.kill)
        clock.daemon = True
        clock.start()
        try:
            answer = self._exchange(self._plan)
        except (EOFError, OSError, WireError):
            raise self._ended_error() from None
        finally:
            clock.cancel()
        if isinstance(answer, VlmkitError | ForeignError):
            raise received_error(answer)

    def build(self, frame: Frame, lease: DecodeLease) -> BuiltPrompt:
        """Have the renderer build the prompt of a request.

        Raises:
            VlmkitError: the error that the renderer raised.
            PromptNotMade: the renderer ended or was killed, and must be replaced.
        """
        with self._lock:
            self._lease, self._began_s = lease, time.monotonic()
            self._is_cancel_sent = False
        try:
            answer = self._exchange(frame)
        except (EOFError, OSError, WireError, MemoryError):
            self.kill()
            raise self._ended_error() from None
        finally:
            with self._lock:
                self._lease = None
        if isinstance(answer, Reply):
            return built_prompt_of(answer)
        if isinstance(answer, VlmkitError | ForeignError):
            raise received_error(answer)
        self.kill()
        raise self._ended_error()

    def check_deadline(self) -> None:
        """Pass on a cancellation; kill the process if it is late or does not stop in time."""
        with self._lock:
            if self._lease is None:
                return
            now = time.monotonic()
            is_late = now - self._began_s > self._timeout_s
            cancelled_s = self._lease.cancellation.cancelled_s
            if is_late:
                self._reason = f"it took longer than {self._timeout_s:g} s"
            elif cancelled_s is None:
                return
            elif now - max(cancelled_s, self._began_s) < CANCEL_S:
                self._is_cancel_sent = self._is_cancel_sent or self._has_sent_cancel()
                return
            self._process.kill()

    def _has_sent_cancel(self) -> bool:
        """Cancel the request in the renderer; return False if its pipe is not ready now."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            pipe = _pipe(self._process.stdin)
            if not select.select([], [pipe], [], 0)[1]:
                return False
            write_frame(pipe, CANCEL)
        except (OSError, ValueError):  # it has ended
            return False
        finally:
            self._writing.release()
        return True

    def kill(self) -> None:
        """Kill the process; harmless when done twice."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and free its pipes and its arena."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _discard(pipe.close)
        self._arena.close()

    def _exchange(self, frame: Frame) -> Answer:
        with self._writing:
            write_frame(_pipe(self._process.stdin), frame)
        return read_answer(_pipe(self._process.stdout), self._arena)

    def _ended_error(self) -> PromptNotMade:
        return PromptNotMade(self._reason or "the process that made it ended")


def _pipe(pipe: Any) -> BinaryIO:
    assert pipe is not None  # noqa: S101 - it is one
    return pipe  # type: ignore[no-any-return]


def _discard(close: Callable[[], None]) -> None:
    """Close a pipe, and discard what it still holds."""
    try:
        close()
    except OSError:
        return


def child_environment() -> dict[str, str]:
    """Return the environment, without secrets, of a process that handles data of clients."""
    names = (name for name in os.environ if name in NOT_SECRET or not SECRET.search(name))
    arenas = {"MALLOC_ARENA_MAX": "2"}  # each takes address space, which is bounded there
    return arenas | {name: os.environ[name] for name in names}
