"""What a request's answer arrives through: from the loop's thread to the one who asked.

One stream serves all ``n`` choices of a request. It can be read by iteration, by async iteration,
or whole. It is bounded: a sequence whose reader falls behind is held until the reader catches up.
The loop knows only the channel behind a stream, so a stream that nobody keeps ends its request.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.protocols import Sample
from vlmkit.wakeups import Wakeups

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one choice.

    Attributes:
        index: which choice.
        text: what is new to show; may be empty while text is held back.
        samples: the tokens that were chosen since the last chunk.
        finish_reason: why the choice ended; None while it goes on.
    """

    index: int
    text: str
    samples: tuple[Sample, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took.

    Attributes:
        prompt_tokens: tokens of the prompt, images included.
        completion_tokens: tokens chosen, over all choices.
        cached_tokens: prompt tokens that were found in the cache, for the first choice.
        image_tokens: placeholder tokens of each image, in order.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds.

    Attributes:
        prompt_s: template, image preprocessing and tokenising.
        queue_s: from submission to the first step that computed any of it.
        first_token_s: from that step to the first token.
        decode_s: from the first token to the end.
    """

    prompt_s: float = 0.0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True)
class Choice:
    """One finished answer."""

    text: str = ""
    finish_reason: FinishReason | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that were chosen, the ending one included."""
        return [sample.token_id for sample in self.samples]


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything that a request gave."""

    choices: list[Choice]
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text


class Clock:
    """Notes the moments of one request's life; each only once."""

    def __init__(self, prompt_s: float = 0.0) -> None:
        self._prompt_s = prompt_s
        self._submitted = time.perf_counter()
        self._started = self._first_token = self._ended = 0.0

    def start(self) -> None:
        """Note that the first step runs."""
        self._started = self._started or time.perf_counter()

    def token(self) -> None:
        """Note that a token was chosen."""
        self._first_token = self._first_token or time.perf_counter()

    def end(self) -> None:
        """Note the end."""
        self._ended = self._ended or time.perf_counter()

    def timings(self) -> Timings:
        """Return the spans between what was noted."""

        def span(start: float, stop: float) -> float:
            return max(0.0, stop - start) if start and stop else 0.0

        return Timings(
            self._prompt_s,
            span(self._submitted, self._started),
            span(self._started, self._first_token),
            span(self._first_token, self._ended),
        )


class Channel:
    """Where the chunks of one request wait for its reader; the loop holds this end.

    Args:
        num_choices: how many choices the request has.
        max_unread_tokens: unread chunks of all choices at which the sequences are held.
        prompt_s: how long making the prompt took.
    """

    def __init__(self, *, num_choices: int, max_unread_tokens: int, prompt_s: float = 0.0) -> None:
        self.num_choices = num_choices
        self.clock = Clock(prompt_s)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._max_unread = max_unread_tokens
        self._condition = threading.Condition()
        self._future: asyncio.Future[None] | None = None
        self._chunks: deque[Chunk] = deque()
        self._num_open = num_choices
        self._is_accepted = False
        self._is_behind = False
        self._error: VlmkitError | None = None

    # The loop's side: called in the loop's thread.

    def accept(self, wakeups: Wakeups) -> None:
        """Note that the scheduler took the request."""
        with self._condition:
            self._is_accepted = True
            self._wake(wakeups)

    def put(self, chunk: Chunk, wakeups: Wakeups) -> None:
        """Hand one chunk over."""
        with self._condition:
            self.completion_tokens += len(chunk.samples)
            self._chunks.append(chunk)
            if chunk.finish_reason is not None:
                self._num_open -= 1
                if not self._num_open:
                    self.clock.end()
            self._is_behind = len(self._chunks) > self._max_unread
            self._wake(wakeups)

    def fail(self, error: VlmkitError, wakeups: Wakeups) -> None:
        """End the whole request with an error, after the chunks that are there."""
        with self._condition:
            self.clock.end()
            self._error = self._error or error
            self._wake(wakeups)

    @property
    def is_behind(self) -> bool:
        """Whether the reader has too much unread."""
        return self._is_behind

    def _wake(self, wakeups: Wakeups) -> None:
        self._condition.notify_all()
        if self._future is not None:
            wakeups.add(self._future)
            self._future = None

    # The reader's side.

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._error is not None or not self._num_open

    def take(self, resume: Callable[[], None]) -> list[Chunk] | None:
        """Return all unread chunks, an empty list at the end, or None when more will come.

        Raises:
            VlmkitError: the request failed, and its chunks were taken before.
        """
        with self._condition:
            chunks = list(self._chunks)
            self._chunks.clear()
            was_behind, self._is_behind = self._is_behind, False
        if was_behind:
            resume()
        if chunks:
            return chunks
        if self._error is not None:
            raise self._error
        return None if self._num_open else []

    def wait(self) -> None:
        """Wait until :meth:`take` has something to say."""
        with self._condition:
            self._condition.wait_for(self._has_news)

    async def wait_async(self) -> None:
        """Wait until :meth:`take` has something to say; one reader at a time."""
        await self._changed(self._has_news)

    async def accepted(self) -> None:
        """Wait until the scheduler took the request.

        Raises:
            VlmkitError: it was refused.
        """
        await self._changed(lambda: self._is_accepted or self.is_done)
        if self._error is not None and not self._chunks:
            raise self._error

    def _has_news(self) -> bool:
        return bool(self._chunks) or self.is_done

    async def _changed(self, is_ready: Callable[[], bool]) -> None:
        while True:
            with self._condition:
                if is_ready():
                    return
                if self._future is not None and not self._future.done():
                    raise EngineError("a stream can be read by one reader at a time")
                self._future = future = asyncio.get_running_loop().create_future()
            await future


class Stream:
    """The answer to one request; the reader holds this end, and dropping it aborts the request.

    Args:
        id: the request's id.
        channel: the other end.
        prompt_tokens: for the usage report.
        image_tokens: for the usage report.
        abort: called when the reader gives up.
        resume: called when a reader that was behind has caught up.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the field's name in the API
        channel: Channel,
        *,
        prompt_tokens: int,
        image_tokens: tuple[int, ...],
        abort: Callable[[Channel], None],
        resume: Callable[[], None],
    ) -> None:
        self.id = id
        self._channel = channel
        self._prompt_tokens = prompt_tokens
        self._image_tokens = image_tokens
        self._abort = abort
        self._resume = resume

    def __del__(self) -> None:
        self.abort()

    @property
    def num_choices(self) -> int:
        """How many choices the request has."""
        return self._channel.num_choices

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._channel.is_done

    @property
    def usage(self) -> Usage:
        """What the request took so far."""
        channel = self._channel
        return Usage(
            self._prompt_tokens,
            channel.completion_tokens,
            channel.cached_tokens,
            self._image_tokens,
        )

    @property
    def timings(self) -> Timings:
        """Where its time went so far."""
        return self._channel.clock.timings()

    def abort(self) -> None:
        """Stop generating and free everything; harmless when it is over already."""
        if not self.is_done:
            self._abort(self._channel)

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they come.

        Raises:
            VlmkitError: the request failed.
        """
        try:
            while chunks := self._next_chunks():
                yield from chunks
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks as they come; the asynchronous form of iteration."""
        try:
            while chunks := await self.next_chunks():
                for chunk in chunks:
                    yield chunk
        finally:
            self.abort()

    def _next_chunks(self) -> list[Chunk]:
        while (chunks := self._channel.take(self._resume)) is None:
            self._channel.wait()
        return chunks

    async def next_chunks(self) -> list[Chunk]:
        """Wait for, and return, everything that has come; empty when the answer is over.

        Raises:
            VlmkitError: the request failed.
        """
        while (chunks := self._channel.take(self._resume)) is None:
            await self._channel.wait_async()
        return chunks

    async def accepted(self) -> None:
        """Wait until the scheduler took the request.

        Raises:
            VlmkitError: it was refused.
        """
        await self._channel.accepted()

    def result(self) -> Completion:
        """Wait for the end and return everything.

        Raises:
            VlmkitError: the request failed.
        """
        choices = self._new_choices()
        for chunk in self:
            _extend(choices, chunk)
        return Completion(choices, self.usage, self.timings)

    async def aresult(self) -> Completion:
        """Wait for the end and return everything; the asynchronous form of :meth:`result`."""
        choices = self._new_choices()
        async for chunk in self:
            _extend(choices, chunk)
        return Completion(choices, self.usage, self.timings)

    def _new_choices(self) -> list[Choice]:
        return [Choice() for _ in range(self.num_choices)]


def _extend(choices: list[Choice], chunk: Chunk) -> None:
    choice = choices[chunk.index]
    choice.text += chunk.text
    choice.samples.extend(chunk.samples)
    choice.finish_reason = chunk.finish_reason or choice.finish_reason
