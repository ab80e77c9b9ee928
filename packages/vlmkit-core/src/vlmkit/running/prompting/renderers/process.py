"""One renderer, seen from the server: a process that makes one prompt at a time, and can be ended.

It has none of the server's sockets, and none of its environment that is named as a secret. It is no
sandbox: what takes it over has the rights of the user who runs the server.
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

from vlmkit.errors import PromptNotMade
from vlmkit.running.prompting.prompt_builder import BuiltPrompt
from vlmkit.running.prompting.renderers.messages import (
    CANCEL,
    MAX_HEAD_BYTES,
    Frame,
    Refusal,
    answer_of,
    error_of,
    made_of,
    read_frame,
    write_frame,
)
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.running.scheduling.decode_memory import DecodeLease

MODULE = "vlmkit.assembly.renderer"
START_S = 600.0  # for a tokenizer whose library takes minutes to import on a slow disk
CANCEL_S = 0.5  # for a renderer to stop by itself, before it is killed: another takes seconds
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
NOT_SECRET = frozenset({"TOKENIZERS_PARALLELISM"})


class Renderer:
    """Starts the process; it is ready when :meth:`wait` returns.

    Args:
        plan: what it is to build.
        timeout_s: for one prompt.
    """

    def __init__(self, plan: Frame, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sheet = SharedArena.made()
        self._place: DecodeLease | None = None
        self._is_cancel_sent = False
        self._writing = threading.Lock()
        self._began_s = 0.0
        self._why = ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-P", "-m", MODULE, self._sheet.address],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the server's to answer
            pass_fds=self._sheet.inherited,
        )
        self._plan = plan

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until it can begin.

        Raises:
            VlmkitError: it cannot build what it needs.
            PromptNotMade: it ended.
        """
        clock = threading.Timer(START_S, self.end)
        clock.daemon = True
        clock.start()
        try:
            answer = self._exchanged(self._plan)
        except (EOFError, OSError, ValueError):
            raise self._lost() from None
        finally:
            clock.cancel()
        if isinstance(answer, Refusal):
            raise error_of(answer)

    def made(self, frame: Frame, place: DecodeLease) -> BuiltPrompt:
        """Return what it makes of a request.

        Raises:
            VlmkitError: what was raised there.
            PromptNotMade: it ended, or was ended; another must take its place.
        """
        with self._lock:
            self._place, self._began_s = place, time.monotonic()
            self._is_cancel_sent = False
        try:
            answer = self._exchanged(frame)
            if isinstance(answer, Refusal):
                raise error_of(answer)
            return made_of(answer, self._sheet)
        except (EOFError, OSError, ValueError, MemoryError):
            self.end()
            raise self._lost() from None
        finally:
            with self._lock:
                self._place = None

    def look(self) -> None:
        """Cancel its request if that was cancelled here; kill it if it is late or does not stop."""
        with self._lock:
            if self._place is None:
                return
            now = time.monotonic()
            is_late = now - self._began_s > self._timeout_s
            cancelled_s = self._place.cancellation.cancelled_s
            if is_late:
                self._why = f"it took longer than {self._timeout_s:g} s"
            elif cancelled_s is None:
                return
            elif now - max(cancelled_s, self._began_s) < CANCEL_S:
                self._is_cancel_sent = self._is_cancel_sent or self._has_sent_cancel()
                return
            self._process.kill()

    def _has_sent_cancel(self) -> bool:
        """Cancel the request in the renderer; False if its pipe is not ready for that now."""
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

    def end(self) -> None:
        """End it at once; harmless when done twice."""
        self._process.kill()

    def close(self) -> None:
        """End it, and give everything back that it had."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _closed(pipe.close)
        self._sheet.close()

    def _exchanged(self, frame: Frame) -> Any:
        with self._writing:
            write_frame(_pipe(self._process.stdin), frame)
        return answer_of(read_frame(_pipe(self._process.stdout), MAX_HEAD_BYTES))

    def _lost(self) -> PromptNotMade:
        return PromptNotMade(self._why or "the process that made it ended")


def _pipe(pipe: Any) -> BinaryIO:
    assert pipe is not None  # noqa: S101 - it is one
    return pipe  # type: ignore[no-any-return]


def _closed(close: Callable[[], None]) -> None:
    """Close a pipe; what it still holds is for nobody."""
    try:
        close()
    except OSError:
        return


def child_environment() -> dict[str, str]:
    """Return the environment of a process that handles what clients sent: without secrets."""
    names = (name for name in os.environ if name in NOT_SECRET or not SECRET.search(name))
    arenas = {"MALLOC_ARENA_MAX": "2"}  # each takes address space, which is bounded there
    return arenas | {name: os.environ[name] for name in names}
