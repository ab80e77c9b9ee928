"""Runs the tools that the rounds of one answer call, within the bounds of its request."""

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
from vlmkit_server.apis.openai_chat.executed_calls import CallResult, shown
from vlmkit_server.exchange.service import Service
from vlmkit_server.gather import gather
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.tools.tool_results import fitted
from vlmkit_server.tools.toolbox import MAX_AT_ONCE, ToolResult, failure

MAX_CALLS = 16  # of one round


class ToolExecutor:
    """Runs calls, a round's side by side.

    Args:
        request: asks for the tools.
        facts: of the model.
        service: has the tools and the bounds.
        max_calls: how many are run at most; None bounds those of each round alone.

    Attributes:
        results: what came of the calls of each round.
    """

    def __init__(
        self, request: Request, facts: RunnerFacts, service: Service, max_calls: int | None
    ) -> None:
        self.results: list[Seq[CallResult]] = []
        self._request_id = request.id
        self._asked = frozenset(map(tool_name, request.tools or ()))
        self._facts = facts
        self._service = service
        self._num_left = math.inf if max_calls is None else max_calls
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[list[ToolResult]] | None = None
        self._is_cancelled = False

    @property
    def are_over(self) -> bool:
        """Whether no more calls are run."""
        return not self._num_left

    def cancel(self) -> None:
        """Stop what runs, and run nothing more; from any thread."""
        self._is_cancelled = True
        if (running := self._running) is not None:
            self._loop.call_soon_threadsafe(running.cancel)

    async def run(self, calls: Seq[ToolCallPart], said: Seq[Message]) -> list[Message]:
        """Run the calls of a round, and return a turn for each.

        Args:
            calls: as the model wrote them.
            said: the conversation before them, which bounds what there is room for.

        Raises:
            Unavailable: this was cancelled.
        """
        num = int(min(len(calls), MAX_CALLS, self._num_left))
        self._num_left -= num
        done = await self._run(calls[:num]) + [failure("too many calls")] * (len(calls) - num)
        turns = [
            Message("tool", tuple(result.parts), call.id)
            for call, result in zip(calls, done, strict=True)
        ]
        turns = fitted(turns, said, self._facts, self._service.settings)
        told = zip(turns, done, strict=True)
        self.results.append([CallResult(shown(turn.parts), each.is_error) for turn, each in told])
        return turns

    async def _run(self, calls: Seq[ToolCallPart]) -> list[ToolResult]:
        limits, toolbox = self._facts.bounds.images, self._service.toolbox

        async def result(call: ToolCallPart) -> ToolResult:
            return await toolbox.result(call, self._asked, limits, self._request_id)

        running = self._running = asyncio.ensure_future(gather(result, calls, MAX_AT_ONCE))
        try:
            done = await running
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        finally:
            running.cancel()
            self._running = None
        if self._is_cancelled:
            raise Unavailable("the answer was cut off", code="aborted")
        return done


def writable(calls: Iterable[ToolCallPart]) -> list[ToolCallPart]:
    """Return calls that a template can write: broken arguments are left out."""
    return [call if _is_writable(call) else replace(call, arguments="{}") for call in calls]


def _is_writable(call: ToolCallPart) -> bool:
    try:
        call.parsed()
    except RequestError:
        return False
    return True
