"""A request of another process, as its caller sees it: admission, acceptance, chunks, its end."""

import asyncio
import threading
import time
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import replace

import msgspec

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.interfaces.observer import RequestFacts
from vlmkit.interfaces.runner import Admit, RunnerFacts
from vlmkit.running.engine_loop.stream import Channel, Stream, Wakeups
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.remote_runner.clock_offset import offset_of, shifted
from vlmkit.running.remote_runner.connection import Connection
from vlmkit.running.remote_runner.messages import (
    Abort,
    Accepted,
    Entry,
    Flow,
    Proceed,
    Refused,
    TokenEntry,
)
from vlmkit.types.completion import Chunk, Timings, Usage
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request

OTHER_CHOICE = "its stream has a choice that was not requested"


class RemoteChannel(Channel):
    """A channel whose usage and timings come from another process.

    Args:
        facts: facts about the request.
        accepted: what the process reported first.
        elapsed_s: the time since the request was sent.
        max_unread_tokens, observers: see :class:`vlmkit.running.engine_loop.stream.Channel`.

    Attributes:
        reasoning_tokens: reasoning tokens so far.
    """

    def __init__(
        self,
        facts: RequestFacts,
        accepted: Accepted,
        elapsed_s: float,
        *,
        max_unread_tokens: int,
        observers: ObserverDispatch | None,
    ) -> None:
        super().__init__(facts, max_unread_tokens=max_unread_tokens, observers=observers)
        self._offset_s = offset_of(accepted.timings, elapsed_s)
        self._known_usage = accepted.usage
        self._known_timings = shifted(accepted.timings, self._offset_s)
        self.reasoning_tokens = accepted.usage.reasoning_tokens

    def learn(self, usage: Usage, timings: Timings) -> None:
        """Take over the usage and the timings of a message."""
        self._known_usage, self._known_timings = usage, shifted(timings, self._offset_s)
        self.reasoning_tokens = usage.reasoning_tokens

    @property
    def stated_tokens(self) -> int:
        """The number of completion tokens, as last reported."""
        return self._known_usage.completion_tokens

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        return replace(
            self._known_usage,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )

    @property
    def timings(self) -> Timings:
        """The durations of the request's stages, as last reported; times by the clock here."""
        return self._known_timings


class OpenRequest:
    """One request, until its end.

    Args:
        number: its number in messages.
        request: the request.
        admit: decides on its demand.
        connection: to the process that answers it.
        who: the name of the runner in errors.
        settled: is resolved when the request is accepted or has failed before.
        ticket: of the quarantine.

    Attributes:
        number, request, ticket: as above.
        is_aborted: whether its reader has gone.
    """

    def __init__(
        self,
        number: int,
        request: Request,
        admit: Admit | None,
        connection: Connection,
        who: str,
        settled: "asyncio.Future[None] | Future[None]",
        ticket: bytes,
    ) -> None:
        self.number, self.request, self.ticket = number, request, ticket
        self.is_aborted = False
        self._sent = time.perf_counter()
        self._admit = admit
        self._settled: asyncio.Future[None] | Future[None] | None = settled
        self._outcome: Stream | BaseException | None = None
        self._is_given_up = False
        self._connection = connection
        self._who = who
        self._refusal: BaseException | None = None
        self._channel: RemoteChannel | None = None
        self._num_open = 0
        self._flow = threading.Lock()
        self._is_paused = False

    @property
    def num_running(self) -> int:
        """Its choices, if a chunk has come."""
        channel = self._channel
        return channel.num_choices if channel is not None and channel.completion_tokens else 0

    @property
    def num_waiting(self) -> int:
        """Its choices, if the process accepted them and no chunk has come."""
        channel = self._channel
        return channel.num_choices if channel is not None and not channel.completion_tokens else 0

    # The caller's side.

    def outcome(self) -> Stream:
        """Return the stream, once; dropping it must abort the request, so none is kept here.

        Raises:
            VlmkitError: the request was refused.
        """
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Stream):
            return outcome
        assert outcome is not None  # noqa: S101 - it is settled
        raise outcome

    def give_up(self) -> None:
        """Abort the request, whose outcome is not awaited any more."""
        self._is_given_up = True
        self._outcome = None
        self.abort()

    def abort(self, _: object = None) -> None:
        """Have the process abort the request."""
        self.is_aborted = True
        self._connection.send(Abort(self.number))

    def resume(self) -> None:
        """Have the process send chunks again."""
        with self._flow:
            if self._is_paused:
                self._is_paused = False
                self._connection.send(Flow(self.number, is_paused=False))

    # The side of the process: called in the thread that reads its messages.

    def decide(self, demand: Demand) -> None:
        """Let the caller decide on the demand, and send the decision."""
        admit, self._admit = self._admit, None
        if self._settled is None or self._is_given_up:
            return
        try:
            if admit is not None:
                admit(demand)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._refusal = error
        self._connection.send(Proceed(self.number, self._refusal is None))

    def accept(
        self,
        message: Accepted,
        facts: RunnerFacts,
        observers: ObserverDispatch | None,
        wakeups: Wakeups,
    ) -> None:
        """Create the stream of an accepted request."""
        request = self.request
        params = request.params or facts.defaults
        if params.n != message.num_choices:
            params = msgspec.structs.replace(params, n=message.num_choices)
        self._channel = channel = RemoteChannel(
            RequestFacts(
                id=request.id,
                model=facts.name,
                tenant=request.tenant,
                params=params,
                prompt_tokens=message.usage.prompt_tokens,
                image_tokens=message.usage.image_tokens,
                task=request.task,
                is_chat=bool(request.messages),
                prompt_s=message.timings.prompt_s,
                trace=request.trace,
            ),
            message,
            time.perf_counter() - self._sent,
            max_unread_tokens=facts.bounds.max_unread_tokens,
            observers=observers,
        )
        self._num_open = message.num_choices
        channel.accept(wakeups)
        stream = Stream(channel, message.prompt_token_ids, abort=self.abort, resume=self.resume)
        self._settle(stream, wakeups)

    def add(self, entry: TokenEntry | Entry, wakeups: Wakeups) -> bool:
        """Deliver chunks; return whether the request has ended."""
        channel = self._channel
        if channel is None:
            return True
        chunks: Seq[Chunk]
        if isinstance(entry, TokenEntry):
            chunks = (Chunk(entry.index, entry.deltas, entry.samples),)
            channel.reasoning_tokens = entry.reasoning_tokens
            problem = "" if 0 <= entry.index < channel.num_choices else OTHER_CHOICE
        else:
            chunks = entry.chunks
            channel.learn(entry.usage, entry.timings)
            problem = self._problem(chunks, channel)
        if problem:
            self.abort()
            channel.fail(EngineError(f"{self._who}: {problem}"), wakeups)
            return True
        for chunk in chunks:
            channel.put(chunk, wakeups)
        if channel.is_behind:
            self._pause(channel)
        return not self._num_open

    def _pause(self, channel: RemoteChannel) -> None:
        """Stop the chunks of the process, unless the reader has caught up meanwhile."""
        with self._flow:
            if channel.is_behind and not self._is_paused:
                self._is_paused = True
                self._connection.send(Flow(self.number, is_paused=True))

    def _problem(self, chunks: Seq[Chunk], channel: RemoteChannel) -> str:
        """Return how chunks contradict the request or its usage; empty if they do not."""
        num_tokens = channel.completion_tokens
        for chunk in chunks:
            num_tokens += len(chunk.samples)
            if chunk.finish_reason is not None:
                self._num_open -= 1
            if not 0 <= chunk.index < channel.num_choices:
                return OTHER_CHOICE
        if self._num_open < 0:
            return "its stream goes on after its end"
        if not self._num_open and num_tokens != (stated := channel.stated_tokens):
            return f"its stream has {num_tokens} tokens, and its usage states {stated}"
        return ""

    def fail(self, error: VlmkitError, wakeups: Wakeups, message: Refused | None = None) -> None:
        """End the request with an error, unless it has ended."""
        if self._channel is not None:
            if message is not None and message.usage is not None and message.timings is not None:
                self._channel.learn(message.usage, message.timings)
            if not self._channel.is_done:
                self._channel.fail(error, wakeups)
            return
        self._settle(self._refusal or error, wakeups)

    def _settle(self, outcome: Stream | BaseException, wakeups: Wakeups) -> None:
        """Let the caller go on, unless it has gone."""
        settled, self._settled = self._settled, None
        if settled is None or self._is_given_up:
            return
        self._outcome = outcome
        if isinstance(settled, Future):
            settled.set_result(None)
        else:
            wakeups.add(settled)
