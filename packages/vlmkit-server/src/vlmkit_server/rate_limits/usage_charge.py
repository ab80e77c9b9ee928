"""What one call of a client is charged: for each request that a runner admits for it."""

import threading
from collections.abc import Callable
from dataclasses import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_server.rate_limits.cost import NOTHING, Cost, of_prompt
from vlmkit_server.rate_limits.tenant_usage import Hold, TenantUsage


class UsageCharge:
    """The requests of one call.

    A prompt counts once its request was accepted; of an answer, what there is of it.

    Args:
        account: whose limits they are held to.
    """

    def __init__(self, account: TenantUsage) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._is_over = False

    async def asubmit(self, runner: Runner, request: Request) -> AnswerStream:
        """Start a request as soon as its limits are known to allow it.

        Raises:
            RateLimited: they do not.
            RequestError: the request is wrong, too long, or the queue is full.
        """
        held: list[tuple[Hold, Demand]] = []

        def admit(demand: Demand) -> None:
            if request.admit is not None:
                request.admit(demand)
            held.append((self._hold(demand), demand))

        stream = await runner.asubmit(replace(request, admit=admit))
        for hold, demand in held:
            hold.used = _meter(stream, demand)
        return stream

    def close(self) -> None:
        """Count what was used; the call is over, and nothing can be admitted for it any more."""
        with self._lock:
            self._is_over = True
            for hold in self._holds:
                self._account.end(hold)
                hold.used = _nothing
            self._holds.clear()

    def _hold(self, demand: Demand) -> Hold:
        with self._lock:
            if self._is_over:
                raise RequestError("the request was given up")
            most = of_prompt(demand).plus(Cost(tokens=demand.answer_tokens))
            hold = self._account.hold(most)
            self._holds.append(hold)
            return hold


def _meter(stream: AnswerStream, demand: Demand) -> Callable[[], Cost]:
    prompt = of_prompt(demand)

    def used() -> Cost:
        num_answered = min(stream.usage.completion_tokens, demand.answer_tokens)
        return prompt._replace(tokens=prompt.tokens + num_answered)

    return used


def _nothing() -> Cost:
    return NOTHING
