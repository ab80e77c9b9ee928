"""Runs a load test: sends conversations in a closed or an open loop, and collects the outcomes.

In a closed loop a number of clients each send a request when their previous one has ended. In an
open loop conversations arrive at times that do not depend on the server. Latencies count from these
times, so a server that stalls cannot hide it by delaying the client (coordinated omission).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from vlmkit_bench.client import Client, Outcome
from vlmkit_bench.workload import Conversation, Shape

NUM_PREPARED = 64  # conversations whose first bodies are made before they are due
MAX_IN_FLIGHT = 8192  # requests of an open loop; a server without answers must not fill the memory
EXACT_SLEEP_S = 0.003  # the end of a wait for an arrival, in a thread
ERROR_PAUSE_S = 0.1  # of a client in a closed loop


@dataclass(frozen=True)
class Load:
    """What a load test sends, and how.

    Attributes:
        shape: makes the messages.
        conversations: the conversations, in order.
        fields: the fields of each request beside its messages and the limit of its answer.
        num_clients: the clients of a closed loop.
        is_open: whether conversations arrive at their own times.
        duration_s: when no further conversation begins; None means when there are no more.
    """

    shape: Shape
    conversations: Iterator[Conversation]
    fields: dict[str, Any]
    num_clients: int
    is_open: bool
    duration_s: float | None = None

    def prepared(self) -> "Prepared | None":
        """Return the next conversation with its first body; None if there are no more."""
        if (conversation := next(self.conversations, None)) is None:
            return None
        messages = [self.shape.first_message(conversation)]
        return Prepared(conversation, messages, self.body(conversation, messages))

    def body(self, conversation: Conversation, messages: list[dict[str, Any]]) -> bytes:
        """Return the body of a request."""
        return msgspec.json.encode(
            {
                "messages": messages,
                "max_tokens": conversation.answer_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            | self.fields
        )


@dataclass(frozen=True)
class Prepared:
    """A conversation that can be sent.

    Attributes:
        conversation: the conversation.
        messages: its messages so far.
        body: the body of its first request.
    """

    conversation: Conversation
    messages: list[dict[str, Any]]
    body: bytes


class LoadTest:
    """Runs one load test.

    Args:
        load: what is sent.
        client: sends it.

    Attributes:
        outcomes: of the requests that have ended, in the order of their ends.
        num_in_flight: the number of requests that have not ended.
    """

    def __init__(self, load: Load, client: Client) -> None:
        self._load = load
        self._client = client
        self._prepared: asyncio.Queue[Prepared | None] = asyncio.Queue(NUM_PREPARED)
        self._is_ready = asyncio.Event()  # what is due first is prepared
        self._is_stopped = False
        self.outcomes: list[Outcome] = []
        self.num_in_flight = 0

    def stop(self) -> None:
        """Begin no further request; those in flight go on."""
        self._is_stopped = True

    async def run(self) -> None:
        """Run the test, and return when all requests have ended."""
        preparing = asyncio.create_task(self._prepare())
        try:
            await self._is_ready.wait()
            self._client.begin()
            await (self._open_loop() if self._load.is_open else self._closed_loop())
        finally:
            preparing.cancel()
            with suppress(asyncio.CancelledError):
                await preparing

    async def _prepare(self) -> None:
        """Make bodies ahead of time, in a thread: images take milliseconds to encode."""
        while (made := await asyncio.to_thread(self._load.prepared)) is not None:
            await self._prepared.put(made)
            if self._prepared.full():
                self._is_ready.set()
        self._is_ready.set()
        for _ in range(self._load.num_clients):
            await self._prepared.put(None)

    @property
    def _is_over(self) -> bool:
        duration_s = self._load.duration_s
        return self._is_stopped or (duration_s is not None and self._client.now_s() >= duration_s)

    async def _closed_loop(self) -> None:
        async def client() -> None:
            while not self._is_over and (made := await self._prepared.get()) is not None:
                if not await self._converse(made, self._client.now_s()):
                    await asyncio.sleep(ERROR_PAUSE_S)

        async with asyncio.TaskGroup() as clients:
            for _ in range(self._load.num_clients):
                clients.create_task(client())

    async def _open_loop(self) -> None:
        async with asyncio.TaskGroup() as requests:
            while not self._is_over and (made := await self._prepared.get()) is not None:
                at_s = made.conversation.at_s or 0.0
                if self._load.duration_s is not None and at_s >= self._load.duration_s:
                    return
                await self._sleep_until(at_s)
                if self.num_in_flight < MAX_IN_FLIGHT:
                    requests.create_task(self._converse(made, at_s))
                else:
                    self.outcomes.append(not_sent(made.conversation.number, at_s))

    async def _sleep_until(self, at_s: float) -> None:
        """Wait for a time of the test more exactly than an event loop, which rounds up to 1 ms."""
        await asyncio.sleep(at_s - self._client.now_s() - EXACT_SLEEP_S)
        await asyncio.to_thread(time.sleep, max(0.0, at_s - self._client.now_s()))

    async def _converse(self, made: Prepared, due_s: float) -> bool:
        """Send the requests of a conversation, one after the other; tell whether all succeeded."""
        conversation, messages, body = made.conversation, made.messages, made.body
        for turn in range(conversation.turns):
            if turn:
                messages.append(self._load.shape.next_message(conversation, turn))
                body = self._load.body(conversation, messages)
                due_s = self._client.now_s()
            self.num_in_flight += 1
            try:
                outcome, text = await self._client.request(conversation.number, turn, due_s, body)
            finally:
                self.num_in_flight -= 1
            self.outcomes.append(outcome)
            if outcome.error is not None or self._is_stopped:
                return outcome.error is None
            messages.append({"role": "assistant", "content": text})
        return True


def not_sent(number: int, at_s: float) -> Outcome:
    """Return the outcome of an arrival when too many requests were in flight."""
    return Outcome(number, 0, at_s, at_s, end_s=at_s, error="too_many_in_flight")
