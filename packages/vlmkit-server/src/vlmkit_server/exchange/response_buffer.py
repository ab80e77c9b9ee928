"""The memory budget of complete answers: reserved before log-probabilities are computed.

A request of 200 bytes can ask for a gigabyte of them. A streamed answer reserves nothing: the
client's reading speed bounds what is buffered.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Admit
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.http.quota import Permit, Quota

TOKEN_BYTES = 256  # of a token with its own log-probability; measured, rounded up
LOGPROB_BYTES = 96  # of each further top log-probability
LOOP_TIMEOUT_S = 60.0  # for the event loop to answer a worker thread


class ResponseBuffer:
    """The memory that one call reserves for its answers.

    Args:
        quota: the quota of all calls.
        account: the tenant or client network of the call.
    """

    def __init__(self, quota: Quota, account: str) -> None:
        self._quota = quota
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._permits: list[Permit] = []
        self._is_over = False

    def counted(self, request: Request, proceed: Admit | None) -> Admit | None:
        """Return the admission of a request that reserves its memory once its size is known.

        Args:
            request: the request.
            proceed: decides between the check of the size and the reservation.
        """
        params = request.params
        if params is None or not (params.logprobs or params.top_logprobs):
            return proceed
        num_each = TOKEN_BYTES + LOGPROB_BYTES * params.top_logprobs

        def admit(demand: Demand) -> None:
            is_scored = request.task == "score"
            num_tokens = demand.prompt_tokens if is_scored else demand.answer_tokens
            self._check(num_tokens, num_tokens * num_each)
            if proceed is not None:
                proceed(demand)
            self._in_loop(partial(self._reserve, num_tokens * num_each))

        return admit

    def close(self) -> None:
        """Release everything; later reservations are refused."""
        self._is_over = True
        for permit in self._permits:
            permit.release()
        self._permits.clear()

    def _check(self, num_tokens: int, num_bytes: int) -> None:
        if num_bytes > self._quota.limit:
            raise RequestError(
                f"the log-probabilities of up to {num_tokens} tokens in one answer would take "
                f"{num_bytes} bytes, over server.max_logprob_bytes",
                param="max_tokens",
                code="answer_too_large",
                hint="ask for fewer tokens, answers or top_logprobs, or for a stream",
            )

    def _reserve(self, num_bytes: int) -> None:
        if self._is_over:
            raise RequestError("the request was given up")
        self._permits.append(self._quota.acquire(self._account, num_bytes))

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


def _do(work: Callable[[], None], done: "Future[None]") -> None:
    try:
        work()
        done.set_result(None)
    except Exception as error:  # noqa: BLE001 - the waiting thread raises it
        done.set_exception(error)
