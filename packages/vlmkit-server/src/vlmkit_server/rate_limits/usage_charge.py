"""Charges the usage of one client call: of every request that a runner admits for it."""

import threading
from collections.abc import Callable

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_server.rate_limits.cost import NOTHING, Cost, of_prompt
from vlmkit_server.rate_limits.tenant_usage import Reservation, TenantUsage


class UsageCharge:
    """The charged requests of one call.

    A prompt counts once its request is accepted; an answer counts as far as it was generated.

    Args:
        usage: the usage that they are charged to.
    """

    def __init__(self, usage: TenantUsage) -> None:
        self._usage = usage
        self._lock = threading.Lock()
        self._reservations: list[Reservation] = []
        self._is_over = False

    async def asubmit(
        self, runner: Runner, request: Request, proceed: Admit | None = None
    ) -> AnswerStream:
        """Start a request, if the limits allow it.

        Args:
            runner: runs the request.
            request: the request.
            proceed: decides before the usage is reserved.

        Raises:
            RateLimited: they do not.
            RequestError: the request is invalid or too long, or the queue is full.
        """
        reserved: list[tuple[Reservation, Demand]] = []

        def admit(demand: Demand) -> None:
            if proceed is not None:
                proceed(demand)
            reserved.append((self._reserve(demand), demand))

        stream = await runner.asubmit(request, admit)
        for reservation, demand in reserved:
            reservation.used = _meter(stream, demand)
        return stream

    def close(self) -> None:
        """Count the usage and end the call; later requests of it are refused."""
        with self._lock:
            self._is_over = True
            for reservation in self._reservations:
                self._usage.end(reservation)
                reservation.used = _nothing
            self._reservations.clear()

    def _reserve(self, demand: Demand) -> Reservation:
        with self._lock:
            if self._is_over:
                raise RequestError("the request was given up")
            most = of_prompt(demand).plus(Cost(tokens=demand.answer_tokens))
            reservation = self._usage.reserve(most)
            self._reservations.append(reservation)
            return reservation


def _meter(stream: AnswerStream, demand: Demand) -> Callable[[], Cost]:
    prompt = of_prompt(demand)

    def used() -> Cost:
        num_answered = min(stream.usage.completion_tokens, demand.answer_tokens)
        return prompt._replace(tokens=prompt.tokens + num_answered)

    return used


def _nothing() -> Cost:
    return NOTHING
