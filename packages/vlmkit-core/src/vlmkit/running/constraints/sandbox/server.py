"""The loop of a constraint worker: forks a process for each trial, and kills it when told to.

Single-threaded, so that it can be forked. A trial inherits the compiler, which takes a second to
build, and gives all memory back when it ends. How the compiler was built is not its business.
"""

import gc
import os
import selectors
import signal
import time
from collections import deque
from typing import BinaryIO, NamedTuple

import msgspec

from vlmkit.errors import OutOfMemory
from vlmkit.interfaces.constraint import ConstraintCompiler
from vlmkit.running.constraints.sandbox.check import MAX_BYTES, checked
from vlmkit.running.constraints.sandbox.messages import (
    CheckRequest,
    CheckResult,
    Killed,
    Result,
    constraint_of,
    frame_of,
    order_of,
    result_of,
)
from vlmkit.running.prompting.renderers.messages import Ready, read_frame, refusal_of, write_frame
from vlmkit.running.prompting.renderers.server import bound_memory

NICE = 5  # trials give way to the engine
LATER_NICE, USUAL_S = 10, 0.05  # and those that take longer than usual, to more
READ_BYTES = 2**16
MAX_FILES = 4096
MAX_WALL_S = 300


class _Trial(NamedTuple):
    number: int
    pid: int
    pipe: int
    parts: list[bytes]
    began_s: float


class SandboxServer:
    """Serves the orders of one server until its pipe closes.

    Args:
        compiler: what is tried.
        vocab_size: columns of the logits.
        asked: where orders come from.
        answers: where results go.
    """

    def __init__(
        self, compiler: ConstraintCompiler, vocab_size: int, asked: BinaryIO, answers: BinaryIO
    ) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._asked = asked
        self._answers = answers
        self._trials: dict[int, _Trial] = {}
        self._usual: deque[_Trial] = deque()  # that have run for less than the usual time
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until the server is gone, and kill what runs then."""
        gc.collect()
        gc.freeze()  # so that a trial shares these pages
        self._selector.register(self._asked, selectors.EVENT_READ, None)
        try:
            write_frame(self._answers, frame_of(Ready()))
            while True:
                for key, _ in self._selector.select(self._until_next_s()):
                    if key.data is None:
                        self._obey()
                    elif key.data.number in self._trials:
                        self._read(key.data)
        except (EOFError, OSError):
            return
        finally:
            for trial in self._trials.values():
                os.kill(trial.pid, signal.SIGKILL)

    def _obey(self) -> None:
        order = order_of(read_frame(self._asked))
        if isinstance(order, CheckRequest):
            self._start(order)
        elif (trial := self._trials.get(order.number)) is not None:
            os.kill(trial.pid, signal.SIGKILL)

    def _start(self, order: CheckRequest) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            _run(self._compiler, order, self._vocab_size, writing)
        os.close(writing)
        trial = _Trial(order.number, pid, reading, [], time.monotonic())
        self._trials[order.number] = trial
        self._usual.append(trial)
        self._selector.register(reading, selectors.EVENT_READ, trial)

    def _until_next_s(self) -> float | None:
        """Lower the priority of trials that take long; return when the next one has to be."""
        while self._usual:
            trial = self._usual[0]
            left_s = trial.began_s + USUAL_S - time.monotonic()
            if left_s > 0 and trial.number in self._trials:
                return left_s
            self._usual.popleft()
            if trial.number in self._trials:
                os.setpriority(os.PRIO_PROCESS, trial.pid, LATER_NICE)
        return None

    def _read(self, trial: _Trial) -> None:
        """Take what a trial wrote; at its end, send the result."""
        if part := os.read(trial.pipe, READ_BYTES):
            trial.parts.append(part)
            return
        self._selector.unregister(trial.pipe)
        os.close(trial.pipe)
        _, status, usage = os.wait4(trial.pid, 0)
        del self._trials[trial.number]
        cpu_s = usage.ru_utime + usage.ru_stime
        write_frame(
            self._answers, frame_of(CheckResult(trial.number, _result(trial, status), cpu_s))
        )


def _result(trial: _Trial, status: int) -> Result:
    try:
        return result_of(b"".join(trial.parts))
    except ValueError:  # msgspec's errors are of this kind
        return Killed(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def _run(compiler: ConstraintCompiler, order: CheckRequest, vocab_size: int, pipe: int) -> None:
    """Run a trial in this process, which ends with it."""
    try:
        _close_all_but(pipe)
        _bound(order.max_cpu_s)
        result: msgspec.Struct = checked(compiler, constraint_of(order), vocab_size)
    except MemoryError:
        result = refusal_of(OutOfMemory("this constraint"))
    except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
        result = refusal_of(error if isinstance(error, Exception) else RuntimeError())
    os.write(pipe, msgspec.msgpack.encode(result))
    os._exit(0)


def _close_all_but(pipe: int) -> None:
    """Close what was inherited: a pipe that stays open here would hide the worker's end.

    What a library prints goes nowhere: it may quote what a client sent.
    """
    os.closerange(0, pipe)
    os.closerange(pipe + 1, pipe + MAX_FILES)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


def _bound(max_cpu_s: float) -> None:
    """Limit this process's time and memory."""
    import resource

    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF kills
    signal.alarm(MAX_WALL_S)  # and SIGALRM, one whose worker was killed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bound_memory(MAX_BYTES)
    os.nice(NICE)
