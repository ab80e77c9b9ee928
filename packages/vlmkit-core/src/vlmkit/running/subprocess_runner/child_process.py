"""The child process of a runner, as its parent sees it: start, messages, end.

The child inherits no socket of this process, and no environment variable whose name looks like a
secret. Ctrl-C does not reach it: it ends when its parent closes it or is gone.
"""

import contextlib
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from vlmkit.errors import EngineError, VlmkitError, WireError
from vlmkit.running.prompting.renderers.process import NOT_SECRET, SECRET
from vlmkit.running.remote_runner.messages import CODEC, Stage, Started
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.frames import Frame, FrameLimits, FrameSplitter, check_limits, write_frame

log = logging.getLogger(__name__)

MODULE = "vlmkit.assembly.runner_process"
WITH_STEPS = "--steps"
WITH_BLOCKS = "--blocks"
LIMITS = FrameLimits(max_head_bytes=256 * 2**20)
SMALL_BYTES = 2048  # a pipe that is ready takes so many without blocking
KILL_S = 5.0  # for a killed process to be gone
READ_BYTES = 2**16  # what a pipe holds


class ChildProcess:
    """One process that builds and runs the pipeline of a model.

    Args:
        plan: what it builds; see :meth:`vlmkit.plugins.build_context.Pipelines.plan`.
        who: the name of the runner in errors.
        wanted: what it reports of its engine: :data:`WITH_STEPS`, :data:`WITH_BLOCKS`.
    """

    def __init__(self, plan: bytes, who: str, wanted: Iterable[str] = ()) -> None:
        self._plan = plan
        self._who = who
        self._writing = threading.Lock()
        self._pending: deque[Frame] = deque()
        self._has_pending: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-P", "-m", MODULE, *wanted],
            env={n: v for n, v in os.environ.items() if n in NOT_SECRET or not SECRET.search(n)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._room = _poll_for_room(self._requests)
        self._before_wait: Callable[[], None] = lambda: None
        self._messages = self._arriving()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def started(self, timeout_s: float, on_stage: Callable[[str], None]) -> Started:
        """Send the plan, and wait until the model is built.

        Args:
            timeout_s: after this time, the process is killed.
            on_stage: called with the name of each stage when it begins.

        Raises:
            VlmkitError: the model cannot be built.
            EngineError: the process ended, or took longer than ``timeout_s``.
        """
        clock = threading.Timer(timeout_s, self.kill)
        clock.daemon = True
        clock.start()
        try:
            write_frame(self._requests, Frame(self._plan))
            while isinstance(answer := next(self._messages), Stage):
                on_stage(answer.name)
        except (EOFError, OSError, WireError):
            self.close()
            raise EngineError(
                f"{self._who}: its process ended before the model was built: {self.reason}",
                hint="see the server's log",
            ) from None
        finally:
            clock.cancel()
        if isinstance(answer, Started):
            return answer
        self.close()
        if isinstance(answer, VlmkitError):
            raise answer
        raise EngineError(f"{self._who}: its process sent another message than its facts")

    def run(
        self,
        on_message: Callable[[Any], None],
        before_wait: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Deliver messages in a thread, until the process ends.

        Args:
            on_message: gets each message.
            before_wait: called after the messages that have arrived, before the thread waits.
            on_end: called when the process has ended.
        """
        threading.Thread(target=self._write, name="vlmkit-requests", daemon=True).start()
        self._before_wait = before_wait
        self._reader = threading.Thread(
            target=self._read, args=(on_message, on_end), name="vlmkit-answers", daemon=True
        )
        self._reader.start()

    def send(self, message: object) -> None:
        """Send a message without waiting; it is lost if the process has ended.

        Messages of one thread arrive in their order. May be called while the garbage collector
        runs, also within another call.

        Raises:
            NotSerializable: it holds a value that cannot be sent, or is too large.
        """
        frame = CODEC.encode(message)
        is_small = not frame.buffers and len(frame.head) <= SMALL_BYTES
        if is_small and self._has_written(frame):
            return
        try:
            check_limits(frame)
        except WireError as error:
            raise NotSerializable("a value of a wrong size") from error
        self._pending.append(frame)
        self._has_pending.put(True)

    def _has_written(self, frame: Frame) -> bool:
        """Write a small frame in this thread, if the pipe has room and no other frame waits."""
        if self._room is None or not self._writing.acquire(blocking=False):
            return False
        try:
            if self._pending or not self._room.poll(0):
                return False
            write_frame(self._requests, frame)
        except (OSError, ValueError):  # the process has ended
            return True
        finally:
            self._writing.release()
        return True

    def kill(self) -> None:
        """Kill the process with all processes that it started; harmless when it has ended."""
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait for the end of the process, then kill it, and wait for its last message."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)
        self._has_pending.put(False)
        if self._reader is None:
            self._close_pipes()
        elif self._reader is not threading.current_thread():
            self._reader.join(KILL_S)

    @property
    def reason(self) -> str:
        """How the process ended: its signal or its exit code."""
        code = self._process.poll()
        if code is None:
            return "it is running"
        if code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    @property
    def _requests(self) -> BinaryIO:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        return self._process.stdin  # type: ignore[return-value]

    def _write(self) -> None:
        try:
            while self._has_pending.get():
                with self._writing:
                    write_frame(self._requests, self._pending[0])
                    self._pending.popleft()
        except (OSError, ValueError):  # the process has ended
            return

    def _arriving(self) -> Iterator[Any]:
        """Yield messages as they arrive.

        Raises:
            EOFError: the process has closed its pipe.
            WireError: a message is malformed.
        """
        pipe, splitter = self._process.stdout, FrameSplitter(LIMITS)
        while content := pipe.read1(READ_BYTES):  # type: ignore[union-attr]
            for frame in splitter.feed(content):
                yield CODEC.decode(frame)
            self._before_wait()
        raise EOFError

    def _read(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        try:
            for message in self._messages:
                on_message(message)
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("%s: a message of its process is refused", self._who)
        self.kill()
        self._process.wait()
        self._has_pending.put(False)
        with self._writing:
            self._close_pipes()
        on_end()

    def _close_pipes(self) -> None:
        """Close both pipes, and discard what they still hold."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def _poll_for_room(pipe: BinaryIO) -> Any:
    """Return what tells whether a pipe takes bytes; None on Windows.

    ``select.select`` would refuse the pipe of a process with over 1023 open files.
    """
    room: Any = None
    if sys.platform != "win32":
        room = select.poll()
        room.register(pipe, select.POLLOUT)
    return room
