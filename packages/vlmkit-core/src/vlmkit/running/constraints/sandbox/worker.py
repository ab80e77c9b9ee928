"""The server's side of a model's constraint worker, a process with the model's compiler.

Starting the worker does not block. A trial blocks the calling thread, which prepares requests, and
is killed when its request is cancelled or its time is over. The number of those threads bounds the
number of parallel trials.
"""

import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence as Seq
from concurrent.futures import Future
from functools import partial
from typing import BinaryIO

from vlmkit.errors import ConstraintError, OutOfMemory, PromptNotMade, VlmkitError, WireError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.running.constraints.sandbox.check import (
    MAX_ALL_CPU_S,
    MAX_BYTES,
    MAX_CPU_S,
    MIN_CPU_S,
)
from vlmkit.running.constraints.sandbox.messages import (
    CODEC,
    CheckResult,
    Killed,
    Passed,
    Result,
    Stop,
    check_request_of,
)
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.prompting.renderers.messages import ForeignError, received_error
from vlmkit.running.prompting.renderers.process import child_environment
from vlmkit.types.constraint import Constraint
from vlmkit.wire.frames import Frame, FrameLimits, read_frame, write_frame

log = logging.getLogger(__name__)

MODULE = "vlmkit.assembly.constraint_worker"
ANSWER_LIMITS = FrameLimits(2**16, max_buffers=0, max_buffer_bytes=0)
MIN_PART_CPU_S = 0.02  # a trial with less proves nothing

MakePlan = Callable[[Seq[bytes]], Frame]
"""Returns the plan of a worker's compiler, given the bytes that each token adds."""


class SandboxBudget:
    """CPU time of all trials of one constraint.

    It bounds the cost of a request, however many parts of its constraint are tried one by one.

    Attributes:
        left_s: the CPU time that is left.
    """

    def __init__(self) -> None:
        self.left_s = MAX_ALL_CPU_S

    @property
    def of_whole_s(self) -> float:
        """CPU time of the next trial of the whole constraint."""
        return max(MIN_CPU_S, min(MAX_CPU_S, self.left_s))

    @property
    def of_part_s(self) -> float:
        """CPU time of the next trial of some parts; as much is left for others."""
        return self.left_s / 2

    def spend(self, cpu_s: float) -> None:
        """Count the CPU time of a trial."""
        self.left_s -= cpu_s


class ConstraintWorker:
    """Runs trials of constraints in processes of their own.

    Args:
        make_plan: returns the plan of the worker's compiler.
        timeout_s: time for one trial, the start of the worker included.
    """

    def __init__(self, make_plan: MakePlan, timeout_s: float) -> None:
        self._make_plan = make_plan
        self._timeout_s = timeout_s
        self._process: _Process | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process id of the worker; None while it does not run."""
        return None if self._process is None else self._process.pid

    def start(self, token_bytes: Seq[bytes]) -> None:
        """Start the process, if it does not run, and return before it is ready.

        Args:
            token_bytes: the bytes that each token adds.

        Raises:
            EngineError: the worker is closed.
        """
        try:
            self._live_process(token_bytes)
        except PromptNotMade as error:
            log.warning("%s; the next constraint starts it again", error)

    def check(
        self,
        constraint: Constraint,
        token_bytes: Seq[bytes],
        cancellation: Cancellation,
        budget: SandboxBudget,
        *,
        is_part: bool = False,
    ) -> int:
        """Try a constraint, and return the memory that it takes, in bytes.

        Args:
            constraint: the constraint, or a part of one.
            token_bytes: the bytes that each token adds, to start a worker that does not run.
            cancellation: of the request.
            budget: CPU time for all trials of the request's constraint; this trial is charged.
            is_part: whether ``constraint`` is only a part of the request's constraint.

        Raises:
            ConstraintError: it cannot be compiled, or takes too much CPU time or memory.
            RequestCancelled: the request was cancelled.
            PromptNotMade: another process killed the trial, or it timed out.
            VlmkitError: the worker cannot build the compiler.
        """
        deadline = time.monotonic() + self._timeout_s
        process = self._live_process(token_bytes)
        try:
            error = process.ready.result(self._timeout_s)
        except TimeoutError:
            raise _timed_out() from None
        if error is not None:
            raise received_error(error)
        max_cpu_s = budget.of_part_s if is_part else budget.of_whole_s
        if max_cpu_s < MIN_PART_CPU_S:
            raise _too_slow(max_cpu_s)
        number, check_result = process.start_check(constraint, max_cpu_s)
        try:
            with cancellation.calling(partial(process.stop_check, number)):
                found = check_result.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            process.stop_check(number)
            raise _timed_out() from None
        budget.spend(found.cpu_s)
        cancellation.check()
        return _checked(found.result, max_cpu_s)

    def _live_process(self, token_bytes: Seq[bytes]) -> "_Process":
        """Return the process; start it if it does not run."""
        with self._lock:
            if self._is_closed:
                raise closing_error()
            if self._process is None or self._process.has_ended:
                if self._process is not None:
                    if self._process.was_ready:
                        log.warning("the constraint worker ended; another is started")
                    self._process.close()
                self._process = _Process(self._make_plan(token_bytes))
            return self._process

    def close(self) -> None:
        """Kill the worker and all trials; harmless when done twice."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()


def _checked(result: Result, max_cpu_s: float) -> int:
    if isinstance(result, Passed):
        return result.num_bytes
    if isinstance(result, OutOfMemory):
        raise _too_large()
    if isinstance(result, VlmkitError | ForeignError):
        raise received_error(result)
    if result.signal in (signal.SIGPROF, signal.SIGXCPU):
        raise _too_slow(max_cpu_s)
    if result.signal in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL):
        raise _too_large()
    raise PromptNotMade("the process that tried its constraint was killed")


def _not_started() -> PromptNotMade:
    return PromptNotMade("the constraint worker could not be started")


def _timed_out() -> PromptNotMade:
    return PromptNotMade("its constraint was not tried in time")


def _too_slow(max_cpu_s: float) -> ConstraintError:
    return ConstraintError(
        "the constraint is too complex: compiling it takes more than "
        f"{max(0.0, max_cpu_s):.1f} s of CPU time"
    )


def _too_large() -> ConstraintError:
    return ConstraintError(
        f"the constraint is too complex: compiling it takes more than {MAX_BYTES >> 20} MiB"
    )


class _Process:
    """One worker process, and the thread that sends its plan and reads its answers.

    Attributes:
        ready: None when trials can start, or the reason why the compiler cannot be built.
    """

    def __init__(self, plan: Frame) -> None:
        self.ready: Future[VlmkitError | ForeignError | None] = Future()
        self._numbers = itertools.count()
        self._results: dict[int, Future[CheckResult]] = {}
        self._lock = threading.Lock()
        try:
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - a module of this package
                [sys.executable, "-P", "-m", MODULE],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the server alone
            )
        except OSError:
            raise _not_started() from None
        assert self._popen.stdin is not None  # noqa: S101 - it is a pipe
        assert self._popen.stdout is not None  # noqa: S101 - it is a pipe
        self._requests: BinaryIO = self._popen.stdin  # type: ignore[assignment]
        self._answers: BinaryIO = self._popen.stdout  # type: ignore[assignment]
        threading.Thread(
            target=self._serve, args=(plan,), name="vlmkit-constraints", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def was_ready(self) -> bool:
        return self.ready.done() and self.ready.result() is None

    @property
    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def start_check(
        self, constraint: Constraint, max_cpu_s: float
    ) -> tuple[int, "Future[CheckResult]"]:
        """Start a trial; return its number, and a future of its result."""
        result: Future[CheckResult] = Future()
        with self._lock:
            number = next(self._numbers)
            self._results[number] = result
            try:
                request = check_request_of(number, constraint, max_cpu_s)
                write_frame(self._requests, CODEC.encode(request))
            except (OSError, ValueError):
                self._results.pop(number).set_result(CheckResult(number, Killed(0), 0.0))
        if self.has_ended:
            self._fail_all()
        return number, result

    def stop_check(self, number: int) -> None:
        """Kill a trial, if it runs, and return at once."""
        with self._lock:
            if number in self._results:
                try:
                    write_frame(self._requests, CODEC.encode(Stop(number)))
                except (OSError, ValueError):
                    return

    def close(self) -> None:
        """Kill the process and its trials."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except OSError:  # it has ended
            self._popen.kill()
        self._popen.wait()
        with self._lock:
            for pipe in (self._requests, self._answers):
                try:
                    pipe.close()
                except OSError:
                    continue
        self._fail_all()

    def _serve(self, plan: Frame) -> None:
        """Send the plan, then deliver the results of trials until the process ends."""
        try:
            write_frame(self._requests, plan)
            answer = CODEC.decode(read_frame(self._answers, ANSWER_LIMITS))
            error = answer if isinstance(answer, VlmkitError | ForeignError) else None
            if isinstance(error, VlmkitError):
                log.error("constraints are refused: %s (%s)", error, error.hint)
            self.ready.set_result(error)
            while True:
                answer = CODEC.decode(read_frame(self._answers, ANSWER_LIMITS))
                if isinstance(answer, CheckResult):
                    with self._lock:
                        result = self._results.pop(answer.number, None)
                    if result is not None:
                        result.set_result(answer)
        except (EOFError, OSError, ValueError, WireError):  # ValueError: a closed file
            self._popen.kill()
            self._popen.wait()
            if not self.ready.done():
                self.ready.set_result(_not_started())
            self._fail_all()

    def _fail_all(self) -> None:
        with self._lock:
            results, self._results = self._results, {}
        for number, result in results.items():
            result.set_result(CheckResult(number, Killed(0), 0.0))
