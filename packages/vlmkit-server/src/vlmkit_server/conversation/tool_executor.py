"""Executes the tool calls of one answer's rounds, within the limits of its request."""

import asyncio
import math
from collections.abc import Iterable, Sequence as Seq
from dataclasses import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.types.tool_choice import tool_name
from vlmkit_server.conversation.executed_calls import CallResult, result_text
from vlmkit_server.exchange.service import Service
from vlmkit_server.gather import gather
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.tools.tool_results import fitted
from vlmkit_server.tools.toolbox import MAX_AT_ONCE, ToolResult, failure

MAX_CALLS = 16  # per round


class ToolExecutor:
    """Executes calls; those of one round concurrently.

    Args:
        request: the request, with the definitions of its tools.
        facts: describes the model.
        service: has the tools and their limits.
        max_calls: the largest number of calls; None limits only those of each round.

    Attributes:
        results: the results of the calls of each round.
    """

    def __init__(
        self, request: Request, facts: RunnerFacts, service: Service, max_calls: int | None
    ) -> None:
        self.results: list[Seq[CallResult]] = []
        self._request_id = request.id
        self._tool_names = frozenset(map(tool_name, request.tools or ()))
        self._facts = facts
        self._service = service
        self._num_left = math.inf if max_calls is None else max_calls
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[list[ToolResult]] | None = None
        self._is_cancelled = False

    @property
    def are_exhausted(self) -> bool:
        """Whether the limit of calls is reached."""
        return not self._num_left

    def cancel(self) -> None:
        """Stop running calls and execute no more; may be called from any thread."""
        self._is_cancelled = True
        if (running := self._running) is not None:
            self._loop.call_soon_threadsafe(running.cancel)

    async def run(self, calls: Seq[ToolCallPart], history: Seq[Message]) -> list[Message]:
        """Execute the calls of a round, and return a tool message for each.

        Args:
            calls: the calls as the model wrote them.
            history: the conversation before the calls; bounds the size of the results.

        Raises:
            Unavailable: :meth:`cancel` was called.
        """
        num_run = int(min(len(calls), MAX_CALLS, self._num_left))
        self._num_left -= num_run
        results = await self._run(calls[:num_run]) + [failure("too many calls")] * (
            len(calls) - num_run
        )
        messages = [
            Message("tool", tuple(result.parts), call.id)
            for call, result in zip(calls, results, strict=True)
        ]
        messages = fitted(messages, history, self._facts, self._service.settings)
        pairs = zip(messages, results, strict=True)
        self.results.append(
            [CallResult(result_text(message.parts), each.is_error) for message, each in pairs]
        )
        return messages

    async def _run(self, calls: Seq[ToolCallPart]) -> list[ToolResult]:
        limits, toolbox = self._facts.bounds.images, self._service.toolbox

        async def result(call: ToolCallPart) -> ToolResult:
            return await toolbox.result(call, self._tool_names, limits, self._request_id)

        running = self._running = asyncio.ensure_future(gather(result, calls, MAX_AT_ONCE))
        try:
            results = await running
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        finally:
            running.cancel()
            self._running = None
        if self._is_cancelled:
            raise Unavailable("the answer was cut off", code="aborted")
        return results


def with_valid_arguments(calls: Iterable[ToolCallPart]) -> list[ToolCallPart]:
    """Return calls that a chat template can write: invalid arguments become an empty object."""
    return [call if _has_valid_arguments(call) else replace(call, arguments="{}") for call in calls]


def _has_valid_arguments(call: ToolCallPart) -> bool:
    try:
        call.parsed()
    except RequestError:
        return False
    return True
