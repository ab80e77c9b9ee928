"""What the answers of one request may take, reserved before they are computed.

Rate limits: a prompt counts once its request is accepted, an answer as far as it was generated.
Memory of complete answers: a request of 200 bytes can ask for a gigabyte of log-probabilities. A
streamed answer takes none: the client's reading speed bounds what is buffered.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.http.quota import Permit, Quota
from vlmkit_server.rate_limits.cost import NOTHING, Cost, of_prompt
from vlmkit_server.rate_limits.tenant_usage import Reservation, TenantUsage

TOKEN_BYTES = 256  # of a token with its own log-probability; measured, rounded up
LOGPROB_BYTES = 96  # of each further top log-probability
LOOP_TIMEOUT_S = 60.0  # for the event loop to answer a worker thread


class Reservations:
    """The reservations of one admission.

    Args:
        usage: the usage that rate limits count; None without limits.
        logprob_bytes: the quota of log-probabilities; None where answers are streamed.
        account: the tenant or client network that the memory counts for.
    """

    def __init__(
        self, usage: TenantUsage | None, logprob_bytes: Quota | None, account: str
    ) -> None:
        self._usage = usage
        self._logprob_bytes = logprob_bytes
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._reservations: list[Reservation] = []
        self._permits: list[Permit] = []
        self._num_logprob_bytes = 0
        self._is_over = False

    async def submit(self, runner: Runner, request: Request, proceed: Admit) -> AnswerStream:
        """Start a request, if its reservations succeed.

        Args:
            runner: runs the request.
            request: the request.
            proceed: decides once the size of the answer is checked, before anything is reserved.

        Raises:
            RateLimited: a rate limit is reached.
            RequestError: the request is invalid or too long, or the queue is full.
        """
        reserved: list[tuple[Reservation, Demand]] = []

        def admit(demand: Demand) -> None:
            num_bytes = self._checked_size(request, demand)
            proceed(demand)
            if num_bytes:
                self._in_loop(partial(self._reserve_memory, num_bytes))
            if self._usage is not None:
                reserved.append((self._reserve_usage(self._usage, demand), demand))

        stream = await runner.asubmit(request, admit)
        for reservation, demand in reserved:
            reservation.used = _meter(stream, demand)
        return stream

    def close(self) -> None:
        """Count the usage and release the memory; later requests are refused."""
        with self._lock:
            self._is_over = True
            for reservation in self._reservations:
                if self._usage is not None:
                    self._usage.end(reservation)
                reservation.used = _nothing
            self._reservations.clear()
        for permit in self._permits:
            permit.release()
        self._permits.clear()

    # Rate limits, in any thread.

    def _reserve_usage(self, usage: TenantUsage, demand: Demand) -> Reservation:
        with self._lock:
            self._check_open()
            most = of_prompt(demand).plus(Cost(tokens=demand.answer_tokens))
            reservation = usage.reserve(most)
            self._reservations.append(reservation)
            return reservation

    def _check_open(self) -> None:
        if self._is_over:
            raise RequestError("the request was given up")

    # Memory, in the event loop's thread.

    def _checked_size(self, request: Request, demand: Demand) -> int:
        """Return the most bytes that the log-probabilities of a complete answer can take."""
        params = request.params
        if self._logprob_bytes is None or params is None:
            return 0
        if not (params.logprobs or params.top_logprobs):
            return 0
        num_tokens = _num_scored(request, demand)
        num_bytes = num_tokens * (TOKEN_BYTES + LOGPROB_BYTES * params.top_logprobs)
        if num_bytes > self._logprob_bytes.limit:
            raise _too_large(f"of up to {num_tokens} tokens in one answer", num_bytes)
        return num_bytes

    def _reserve_memory(self, num_bytes: int) -> None:
        self._check_open()
        if self._logprob_bytes is None:
            return
        total = self._num_logprob_bytes + num_bytes
        if self._permits and total > self._logprob_bytes.most_in_parts:
            # Trying again would not help.
            raise _too_large("of all answers together", total)
        self._permits.append(self._logprob_bytes.acquire(self._account, num_bytes))
        self._num_logprob_bytes = total

    def _in_loop(self, work: Callable[[], None]) -> None:
        """Run a function in the event loop's thread, and wait for it; called in any thread."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            work()
            return
        done: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(partial(_do, work, done))
            done.result(LOOP_TIMEOUT_S)
        except (RuntimeError, TimeoutError) as error:  # the loop has ended, or is blocked
            raise Unavailable("the server is shutting down", code="server_draining") from error


def _num_scored(request: Request, demand: Demand) -> int:
    """Return the most tokens that have log-probabilities; a text has at most a token a byte."""
    if request.task != "score":
        return demand.answer_tokens
    if not request.continuations:
        return demand.prompt_tokens
    return sum(
        len(scored.encode(errors="replace")) + 1 if isinstance(scored, str) else len(scored)
        for scored in request.continuations
    )


def _too_large(what: str, num_bytes: int) -> RequestError:
    return RequestError(
        f"the log-probabilities {what} would take {num_bytes} bytes, over server.max_logprob_bytes",
        param="max_tokens",
        code="answer_too_large",
        hint="ask for fewer tokens, answers or top_logprobs, or for a stream",
    )


def _do(work: Callable[[], None], done: "Future[None]") -> None:
    try:
        work()
        done.set_result(None)
    except Exception as error:  # noqa: BLE001 - the waiting thread raises it
        done.set_exception(error)


def _meter(stream: AnswerStream, demand: Demand) -> Callable[[], Cost]:
    prompt = of_prompt(demand)

    def used() -> Cost:
        num_answered = min(stream.usage.completion_tokens, demand.answer_tokens)
        return prompt._replace(tokens=prompt.tokens + num_answered)

    return used


def _nothing() -> Cost:
    return NOTHING
