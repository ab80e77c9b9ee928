"""The loop of a constraint worker: forks a process for each trial, and kills it on request.

The worker is single-threaded, so that it can fork. A trial inherits the compiler, which takes a
second to build, and frees all memory when it ends. The compiler is built elsewhere.
"""

import gc
import os
import selectors
import signal
import time
from collections import deque
from typing import BinaryIO, NamedTuple

from vlmkit.errors import OutOfMemory, WireError
from vlmkit.interfaces.constraint import ConstraintCompiler
from vlmkit.running.constraints.sandbox.check import MAX_BYTES, checked
from vlmkit.running.constraints.sandbox.messages import (
    CODEC,
    CheckRequest,
    CheckResult,
    Killed,
    Result,
    constraint_of,
    result_of,
)
from vlmkit.running.prompting.renderers.messages import Ready, sent_error
from vlmkit.running.prompting.renderers.server import bound_memory
from vlmkit.wire.frames import read_frame, write_frame

NICE = 5  # trials have a lower priority than the engine
LATER_NICE, USUAL_S = 10, 0.05  # and an even lower one once they take longer than usual
READ_BYTES = 2**16
MAX_FILES = 4096
MAX_WALL_S = 300


class _RunningCheck(NamedTuple):
    number: int
    pid: int
    pipe: int
    parts: list[bytes]
    began_s: float


class SandboxServer:
    """Serves the requests of one server until its pipe closes.

    Args:
        compiler: the compiler that trials use.
        vocab_size: columns of the logits.
        requests: the pipe of requests.
        answers: the pipe of results.
    """

    def __init__(
        self, compiler: ConstraintCompiler, vocab_size: int, requests: BinaryIO, answers: BinaryIO
    ) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._requests = requests
        self._answers = answers
        self._checks: dict[int, _RunningCheck] = {}
        self._recent: deque[_RunningCheck] = deque()  # trials at the initial priority
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until the server is gone, then kill all trials."""
        gc.collect()
        gc.freeze()  # so that trials share these pages
        self._selector.register(self._requests, selectors.EVENT_READ, None)
        try:
            write_frame(self._answers, CODEC.encode(Ready()))
            while True:
                for key, _ in self._selector.select(self._until_next_s()):
                    if key.data is None:
                        self._handle_request()
                    elif key.data.number in self._checks:
                        self._read(key.data)
        except (EOFError, OSError, WireError):
            return
        finally:
            for check in self._checks.values():
                os.kill(check.pid, signal.SIGKILL)

    def _handle_request(self) -> None:
        request = CODEC.decode(read_frame(self._requests))
        if isinstance(request, CheckRequest):
            self._start(request)
        elif (check := self._checks.get(request.number)) is not None:
            os.kill(check.pid, signal.SIGKILL)

    def _start(self, request: CheckRequest) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            _run(self._compiler, request, self._vocab_size, writing)
        os.close(writing)
        check = _RunningCheck(request.number, pid, reading, [], time.monotonic())
        self._checks[request.number] = check
        self._recent.append(check)
        self._selector.register(reading, selectors.EVENT_READ, check)

    def _until_next_s(self) -> float | None:
        """Lower the priority of long trials; return the time until the next one is due, if any."""
        while self._recent:
            check = self._recent[0]
            left_s = check.began_s + USUAL_S - time.monotonic()
            if left_s > 0 and check.number in self._checks:
                return left_s
            self._recent.popleft()
            if check.number in self._checks:
                os.setpriority(os.PRIO_PROCESS, check.pid, LATER_NICE)
        return None

    def _read(self, check: _RunningCheck) -> None:
        """Read the output of a trial; at its end, send the result."""
        if part := os.read(check.pipe, READ_BYTES):
            check.parts.append(part)
            return
        self._selector.unregister(check.pipe)
        os.close(check.pipe)
        _, status, usage = os.wait4(check.pid, 0)
        del self._checks[check.number]
        cpu_s = usage.ru_utime + usage.ru_stime
        result = CheckResult(check.number, _result(check, status), cpu_s)
        write_frame(self._answers, CODEC.encode(result))


def _result(check: _RunningCheck, status: int) -> Result:
    try:
        return result_of(b"".join(check.parts))
    except WireError:
        return Killed(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def _run(compiler: ConstraintCompiler, request: CheckRequest, vocab_size: int, pipe: int) -> None:
    """Run a trial in this process, which then ends."""
    try:
        _close_all_but(pipe)
        _bound(request.max_cpu_s)
        result: Result = checked(compiler, constraint_of(request), vocab_size)
    except MemoryError:
        result = OutOfMemory("this constraint")
    except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
        result = sent_error(error if isinstance(error, Exception) else RuntimeError())
    os.write(pipe, CODEC.encode(result).head)
    os._exit(0)


def _close_all_but(pipe: int) -> None:
    """Close all inherited files: a pipe left open here would hide the end of the worker.

    The output of libraries is discarded, since it may quote what a client sent.
    """
    os.closerange(0, pipe)
    os.closerange(pipe + 1, pipe + MAX_FILES)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


def _bound(max_cpu_s: float) -> None:
    """Limit the time and memory of this process."""
    import resource

    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF kills
    signal.alarm(MAX_WALL_S)  # SIGALRM kills a trial whose worker was killed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bound_memory(MAX_BYTES)
    os.nice(NICE)
