"""The tool loop: answers a request for tools of the server in rounds, which are read as one answer.

A round is one answer of the runner. If it calls tools, the server executes them and adds their
results to the conversation, and the next round answers it. The reader gets the text and reasoning
of all rounds, and the calls and results if its API can report them.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from msgspec import structs

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.types.completion import Choice, Chunk, Completion, Timings, Usage
from vlmkit.types.delta import (
    Delta,
    ToolCallDelta,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.message import Message, Part, ReasoningPart, TextPart, images_of
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.conversation.executed_calls import ResultDelta, Round
from vlmkit_server.conversation.merged_stream import total_usage
from vlmkit_server.conversation.tool_executor import ToolExecutor, with_valid_arguments
from vlmkit_server.exchange.service import Service
from vlmkit_server.interfaces.conversation import Conversation

ROUND_SEPARATOR = "\n\n"  # between the texts of two rounds


class ToolLoop:
    """An answer of one choice in several rounds; one reader streams it or reads it whole.

    Args:
        runner: answers each round.
        request: the request of the first round, with the definitions of the tools.
        service: has the tools and their limits.
        shows_calls: whether the stream reports calls and their results.
        max_calls: the largest number of calls; None limits only the rounds.

    Attributes:
        rounds: all rounds, once :meth:`aresult` has returned.
    """

    num_choices = 1

    @classmethod
    async def of(
        cls,
        conversation: Conversation,
        request: Request,
        runner: Runner,
        service: Service,
        *,
        shows_calls: bool,
        max_calls: int | None,
    ) -> "ToolLoop":
        """Return the loop of a conversation that asks for tools of the server.

        Raises:
            RequestError: a tool does not exist, or another field excludes tools of the server.
            Unavailable: a tool is not available now.
        """
        check_server_tool_conflicts(conversation, request)
        tools = await service.toolbox.described(conversation.server_tools)
        is_parallel = conversation.parallel_tool_calls
        first = replace(request, tools=tools, tool_choice="auto", parallel_tool_calls=is_parallel)
        return cls(runner, first, service, shows_calls=shows_calls, max_calls=max_calls)

    def __init__(
        self,
        runner: Runner,
        request: Request,
        service: Service,
        *,
        shows_calls: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._runner = runner
        self._request = request
        self._service = service
        self._shows_calls = shows_calls
        self._num_left = service.settings.max_tool_rounds
        self._tools = ToolExecutor(request, runner.facts, service, max_calls)
        self.rounds: list[Round] = []
        self._past_usages: list[Usage] = []
        self._past_timings: list[Timings] = []
        self._regions: list[GroundedRegion] = []  # of past rounds
        self._num_past_calls = 0
        self._deltas: list[Delta] = []  # of this round
        self._has_calls = False
        self._seen_types: set[type[Delta]] = set()  # in any round
        self._pending_separators: set[type[Delta]] = set()  # due before more text of these
        self._stream: AnswerStream
        self._is_aborted = False

    async def submit(self) -> None:
        """Submit the next round; the last one must not call tools.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
        """
        if not self._num_left or self._tools.are_exhausted:
            self._request = replace(self._request, tool_choice="none")
        self._num_left -= 1
        self._deltas, self._has_calls = [], False
        self._stream = await self._runner.asubmit(self._request)
        if self._is_aborted:
            self._stream.abort()

    @property
    def prompt_token_ids(self) -> Seq[int]:
        """The prompt's tokens in the newest round."""
        return self._stream.prompt_token_ids

    @property
    def usage(self) -> Usage:
        """The tokens of all rounds so far."""
        return total_usage([*self._past_usages, self._stream.usage])

    @property
    def timings(self) -> Timings:
        """The timings of all rounds so far."""
        return _timings([*self._past_timings, self._stream.timings])

    async def next_chunks(self) -> list[Chunk]:
        """Execute pending calls, and return new chunks; empty when the answer has ended.

        Raises:
            VlmkitError: a round failed.
        """
        if self._has_calls:
            text, reasoning = text_of(self._deltas), reasoning_of(self._deltas)
            calls = tool_calls_of(self._deltas)
            if not await self._start_next_round(text, reasoning, calls):
                self._has_calls = False
                return [Chunk(0, finish_reason="length", places=tuple(self._regions))]
            first, self._num_past_calls = self._num_past_calls, self._num_past_calls + len(calls)
            if self._shows_calls:
                results = enumerate(self._tools.results[-1], start=first)
                return [Chunk(0, tuple(ResultDelta(n, **each._asdict()) for n, each in results))]
        return [self._visible(chunk) for chunk in await self._stream.next_chunks()]

    async def aresult(self) -> Completion:
        """Wait for the end of all rounds and return them as one completion.

        Raises:
            VlmkitError: a round failed.
        """
        done = [await self._stream.aresult()]
        while (last := done[-1].choices[0]).tool_calls and last.finish_reason == "stop":
            if not await self._start_next_round(last.text, last.reasoning, last.tool_calls):
                last.finish_reason = "length"
                break
            done.append(await self._stream.aresult())
        rounds = [each.choices[0] for each in done]
        results = [*self._tools.results, ()]  # no call of the last round was executed
        self.rounds = [
            Round(choice, executed) for choice, executed in zip(rounds, results, strict=True)
        ]
        merged = Choice(
            ROUND_SEPARATOR.join(each.text for each in rounds if each.text),
            ROUND_SEPARATOR.join(each.reasoning for each in rounds if each.reasoning),
            finish_reason=last.finish_reason,
            stop_string=last.stop_string,
            places=tuple(place for each in rounds for place in each.places),
        )
        return Completion([merged], self.usage, _timings([each.timings for each in done]))

    def abort(self) -> None:
        """Stop the answer; may be called from any thread, and after its end."""
        self._is_aborted = True
        self._stream.abort()
        self._tools.cancel()

    def _visible(self, chunk: Chunk) -> Chunk:
        """Return the part of a chunk that the reader gets, and record its calls."""
        self._deltas += chunk.deltas
        visible: list[Delta] = []
        for delta in chunk.deltas:
            if isinstance(delta, ToolCallDelta):
                if self._shows_calls:
                    index = self._num_past_calls + delta.index
                    visible.append(structs.replace(delta, index=index))
                continue
            if not delta.text:
                continue
            if type(delta) in self._pending_separators:
                visible.append(type(delta)(ROUND_SEPARATOR))
                self._pending_separators.discard(type(delta))
            self._seen_types.add(type(delta))
            visible.append(delta)
        if chunk.finish_reason == "stop":
            self._has_calls = any(isinstance(each, ToolCallDelta) for each in self._deltas)
        reason = None if self._has_calls else chunk.finish_reason
        self._regions += chunk.places
        places = tuple(self._regions) if reason else ()
        return structs.replace(chunk, deltas=tuple(visible), finish_reason=reason, places=places)

    async def _start_next_round(self, text: str, reasoning: str, calls: Seq[ToolCallPart]) -> bool:
        """Execute the calls and submit the next round; False if no tokens remain for one."""
        usage = self._stream.usage
        params = self._request.params or self._runner.facts.defaults
        if params.max_tokens is not None:
            if params.max_tokens <= usage.completion_tokens:
                return False
            num_tokens_left = params.max_tokens - usage.completion_tokens
            params = structs.replace(params, max_tokens=num_tokens_left, min_tokens=0)
        results = await self._tools.run(calls, self._request.messages)
        self._request = replace(
            self._request,
            messages=(*self._request.messages, _round_message(text, reasoning, calls), *results),
            params=params,
            places=self._request.places and not any(images_of(results)),
            options=replace(
                self._request.options, add_generation_prompt=True, continue_final_message=False
            ),
        )
        self._past_usages.append(usage)
        self._past_timings.append(self._stream.timings)
        self._pending_separators = set() if self._shows_calls else set(self._seen_types)
        await self.submit()
        return True


def _round_message(text: str, reasoning: str, calls: Seq[ToolCallPart]) -> Message:
    """Return a round as an assistant message of the conversation."""
    parts: list[Part] = [ReasoningPart(reasoning)] if reasoning else []
    parts += [TextPart(text)] if text else []
    return Message("assistant", (*parts, *with_valid_arguments(calls)))


def _timings(timings: Seq[Timings]) -> Timings:
    """Return the timings of all rounds together."""
    fields: dict[str, Any] = {
        name: sum(getattr(each, name) for each in timings)
        for name in ("prompt_s", "queue_s", "first_token_s", "decode_s")
    }
    images = tuple(image for each in timings for image in each.images)
    return Timings(**fields, began_s=timings[0].began_s, images=images)


def check_server_tool_conflicts(conversation: Conversation, request: Request) -> None:
    """Refuse fields that exclude tools of the server.

    Raises:
        RequestError: the body has both.
    """
    extras = conversation.extras
    others = {
        "tools": bool(conversation.num_tool_chars),
        "tool_choice": conversation.tool_choice not in (None, "auto"),
        "n": request.params is not None and request.params.n > 1,
        "logprobs": extras.logprobs,
        "prompt_logprobs": conversation.num_prompt_logprobs is not None,
        "return_token_ids": extras.token_ids,
        "return_image_transforms": extras.image_transforms,
        "add_generation_prompt": not request.options.add_generation_prompt,
        "continue_final_message": request.options.continue_final_message,
    }
    for field in (name for name, is_given in others.items() if is_given):
        raise RequestError(f"server_tools and {field} cannot be asked for together", param=field)
