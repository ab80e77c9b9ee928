"""The stream of an answer, and the channel through which the engine loop fills it.

The loop's thread writes chunks to a :class:`Channel`, and the reader gets them from a
:class:`Stream`. It iterates over the stream, in async code or not, or waits for the whole answer.
The buffer is bounded: the loop holds a sequence whose reader is behind until the reader has caught
up. One stream serves all ``n`` choices of a request. Dropping the last reference to it aborts the
request.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType

from vlmkit.errors import EngineError, MediaError, VlmkitError
from vlmkit.interfaces.observer import RequestEnd, RequestFacts
from vlmkit.kit.heap import NUM_AT_ONCE, release
from vlmkit.kit.whole_answer import WholeAnswer
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage
from vlmkit.types.shown_image import ShownImage
from vlmkit.types.stage import NO_STAGE, ImageTimings, Stage


class Wakeups:
    """Wakes all waiting readers of an event loop with one call.

    It collects their futures, and resolves those of each event loop together.
    """

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, future: "asyncio.Future[None]") -> None:
        """Resolve a future at the next flush."""
        self._futures.setdefault(future.get_loop(), []).append(future)

    def flush(self) -> None:
        """Resolve every future that was added."""
        waiting, self._futures = self._futures, {}
        for event_loop, futures in waiting.items():
            try:
                event_loop.call_soon_threadsafe(_resolve, futures)
            except RuntimeError:  # the event loop is closed, and with it all readers
                continue


class Clock:
    """Records when the stages of one request began and ended; the first time of each counts.

    It reads the time of day once, so that durations stay right when the system's clock is set.
    """

    def __init__(self, prompt_s: float = 0.0) -> None:
        self._prompt_s = prompt_s
        self._began_s = time.time() - prompt_s
        self._submitted = time.perf_counter()
        self._started = self._first_token = self._ended = 0.0

    @property
    def now_s(self) -> float:
        """The time in seconds since the epoch."""
        return self._began_s + self._prompt_s + (time.perf_counter() - self._submitted)

    def start(self) -> None:
        """Record the first step."""
        self._started = self._started or time.perf_counter()

    def token(self) -> None:
        """Record the first token."""
        self._first_token = self._first_token or time.perf_counter()

    def end(self) -> None:
        """Record the end."""
        self._ended = self._ended or time.perf_counter()

    def timings(self) -> Timings:
        """Return the durations between the recorded times."""

        def span(start: float, stop: float) -> float:
            return max(0.0, stop - start) if start and stop else 0.0

        return Timings(
            self._prompt_s,
            span(self._submitted, self._started),
            span(self._started, self._first_token),
            span(self._first_token, self._ended),
            self._began_s,
        )


class Channel:
    """The unread chunks of one request, and its usage and timings.

    Args:
        facts: facts about the request.
        max_unread_tokens: unread chunks of each choice at which the loop holds the sequences.
        images: how each image is shown, by its index among the media of the prompt, as if its
            features were cached.
        encoded: when each medium was encoded, by that index; the loop adds to it. Cached ones are
            not in it.
        image_timings: the timings of each image before its encoding, by that index.
        sent: which of the client's images and files each image comes from, by that index.
        account: the account in the fair queue; the tenant's if empty.
        observers: receive events of the request; None if there are no observers.
        acceptance: is resolved when the request is accepted or has failed.

    Attributes:
        is_behind: whether too many chunks are unread.
        many_chunks: half of those; a reader of the whole answer waits for so many.
    """

    def __init__(
        self,
        facts: RequestFacts,
        *,
        max_unread_tokens: int,
        images: Mapping[int, ShownImage] = MappingProxyType({}),
        encoded: Mapping[int, Stage] = MappingProxyType({}),
        image_timings: Mapping[int, ImageTimings] = MappingProxyType({}),
        sent: Mapping[int, int] = MappingProxyType({}),
        account: str = "",
        observers: ObserverDispatch | None = None,
        acceptance: "asyncio.Future[None] | None" = None,
    ) -> None:
        self.facts = facts
        self.account = account or facts.tenant
        self.num_choices = num_choices = facts.params.n
        self.clock = Clock(facts.prompt_s)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.answers: list[AnswerText] = []  # which count their reasoning tokens
        self._images = images
        self._encoded = encoded
        self._image_timings = image_timings
        self._sent = sent
        self._max_unread = max_unread_tokens * num_choices
        self.many_chunks = max(1, self._max_unread // 2)
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._num_waiting = 0  # threads
        self._future = acceptance
        self._num_wanted = 0  # unread chunks that wake the reader; none wake it at any change
        self._chunks: list[Chunk] = []
        self._num_open = num_choices
        self._reasons: list[FinishReason] = []
        self._observers = observers
        self._is_accepted = False
        self.is_behind = False
        self._error: VlmkitError | None = None

    # The loop's side: called in the loop's thread.

    def accept(self, wakeups: Wakeups) -> None:
        """Record that the scheduler accepted the request."""
        with self._lock:
            if self._observers is not None and not self._is_accepted:
                self._observers.notify("accepted", self.facts, at_s=self.clock.now_s)
            self._is_accepted = True
            self._wake(wakeups)

    def put(self, chunk: Chunk, wakeups: Wakeups) -> None:
        """Add a chunk."""
        with self._lock:
            self.completion_tokens += len(chunk.samples)
            self._chunks.append(chunk)
            if chunk.finish_reason is not None:
                self._num_open -= 1
                self._reasons.append(chunk.finish_reason)
                if not self._num_open:
                    self.clock.end()
            if self._observers is not None:
                self._tell(self._observers, chunk)
            self.is_behind = len(self._chunks) > self._max_unread
            self._wake(wakeups)

    def fail(self, error: VlmkitError, wakeups: Wakeups) -> None:
        """End the whole request with an error, after the chunks that are unread.

        The error of a medium in the prompt becomes one of the image or file that the client sent.
        """
        if isinstance(error, MediaError) and (index := error.index) is not None:
            error = copy(error)
            error.index = self._sent.get(index)
        with self._lock:
            self.clock.end()
            if self._observers is not None and not self.is_done:
                self._observers.notify("failed", self.facts, error, at_s=self.clock.now_s)
            self._error = self._error or error
            self._wake(wakeups)

    def _tell(self, observers: ObserverDispatch, chunk: Chunk) -> None:
        at_s = self.clock.now_s
        if chunk.samples and self.completion_tokens == len(chunk.samples):
            observers.notify("first_token", self.facts, at_s=at_s)
        observers.notify("tokens", self.facts, chunk, at_s=at_s)
        if not self._num_open:
            end = RequestEnd(tuple(self._reasons), self.usage, self.timings)
            observers.notify("finished", self.facts, end, at_s=at_s)

    def _wake(self, wakeups: Wakeups) -> None:
        if not self._has_news():
            return
        if self._num_waiting:
            self._news.notify_all()
        if self._future is not None:
            wakeups.add(self._future)
            self._future = None

    # The reader's side.

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        return Usage(
            self.facts.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.facts.image_tokens,
            sum(answer.num_reasoning_tokens for answer in self.answers),
            tuple(
                replace(image, is_cached=index not in self._encoded)
                for index, image in self._images.items()
            ),
        )

    @property
    def timings(self) -> Timings:
        """The durations of the request's stages so far."""
        timings = self.clock.timings()
        if not self._image_timings:
            return timings
        images = tuple(
            replace(each, encode=self._encoded.get(index, NO_STAGE))
            for index, each in self._image_timings.items()
        )
        return replace(timings, images=images)

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """The finish reasons of the choices that have ended."""
        return tuple(self._reasons)

    @property
    def is_done(self) -> bool:
        """Whether no more chunks will come."""
        return self._error is not None or not self._num_open

    def take(self, resume: Callable[[], None]) -> list[Chunk] | None:
        """Return all unread chunks; an empty list at the end; None while more will come.

        Raises:
            VlmkitError: the request failed, and all its chunks were read.
        """
        with self._lock:
            chunks, self._chunks = self._chunks, []
            was_behind, self.is_behind = self.is_behind, False
        if was_behind:
            resume()
        if chunks:
            return chunks
        if self._error is not None:
            raise self._error
        return None if self._num_open else []

    def wait(self, num_chunks: int) -> None:
        """Wait for so many unread chunks, or the end."""
        with self._lock:
            self._num_wanted = num_chunks
            self._num_waiting += 1
            try:
                self._news.wait_for(self._has_news)
            finally:
                self._num_waiting -= 1

    def news(self, num_chunks: int) -> "asyncio.Future[None] | None":
        """Return a future that is done with so many unread chunks, or the end; None if it is now.

        Raises:
            EngineError: another reader waits.
        """
        with self._lock:
            return self._next_change(num_chunks)

    async def accepted(self) -> None:
        """Wait until the scheduler has accepted the request.

        Raises:
            VlmkitError: it was refused.
        """
        while (change := self._acceptance()) is not None:
            await change
        if self._error is not None and not self._chunks:
            raise self._error

    def _has_news(self) -> bool:
        return len(self._chunks) >= self._num_wanted or self.is_done

    def _acceptance(self) -> "asyncio.Future[None] | None":
        with self._lock:
            return None if self._is_accepted or self.is_done else self._next_change(0)

    def _next_change(self, num_chunks: int) -> "asyncio.Future[None] | None":
        """Return a future that is done when the channel changes; call it under the lock."""
        if self._future is not None and not self._future.done():
            raise EngineError("a stream can be read by one reader at a time")
        self._num_wanted = num_chunks
        if num_chunks and self._has_news():
            return None
        self._future = asyncio.get_running_loop().create_future()
        return self._future


class Stream:
    """The answer to one request; dropping it aborts the request.

    Args:
        channel: buffers the chunks.
        prompt_token_ids: the prompt.
        abort: called when the stream is closed before its end.
        resume: called when a reader that was behind has caught up.
    """

    def __init__(
        self,
        channel: Channel,
        prompt_token_ids: tuple[int, ...],
        *,
        abort: Callable[[Channel], None],
        resume: Callable[[], None],
    ) -> None:
        self.id = channel.facts.id
        self.prompt_token_ids = prompt_token_ids
        self._channel = channel
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
        """Whether no more chunks will come."""
        return self._channel.is_done

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        return self._channel.usage

    @property
    def timings(self) -> Timings:
        """The durations of its stages so far."""
        return self._channel.timings

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """The finish reasons of the choices that have ended, in the order of their ends."""
        return self._channel.reasons

    def abort(self) -> None:
        """Abort the request and free everything; does nothing after its end."""
        if not self.is_done:
            self._abort(self._channel)

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they come.

        Raises:
            VlmkitError: the request failed.
        """
        try:
            while chunks := self._next_chunks(1):
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

    def _next_chunks(self, num_chunks: int) -> list[Chunk]:
        """Wait for so many unread chunks; few wake-ups leave more time to the engine."""
        self._channel.wait(num_chunks)
        return self._channel.take(self._resume) or []

    async def next_chunks(self) -> list[Chunk]:
        """Wait for unread chunks and return all of them; an empty list at the end.

        Raises:
            VlmkitError: the request failed.
        """
        return await self._anext_chunks(1)

    async def _anext_chunks(self, num_chunks: int) -> list[Chunk]:
        chunks = None
        while chunks is None:
            if (news := self._channel.news(num_chunks)) is not None:
                await news
            elif not self.is_done:  # a reader that never has to wait lets other tasks run
                await asyncio.sleep(0)
            chunks = self._channel.take(self._resume)
        return chunks

    async def accepted(self) -> None:
        """Wait until the scheduler has accepted the request.

        Raises:
            VlmkitError: it was refused.
        """
        await self._channel.accepted()

    def result(self) -> Completion:
        """Wait for the end and return the whole answer.

        Raises:
            VlmkitError: the request failed.
        """
        whole = WholeAnswer(self.num_choices)
        try:
            while chunks := self._next_chunks(self._channel.many_chunks):
                whole.add(chunks)
        finally:
            self.abort()
        return self._completion(whole)

    async def aresult(self) -> Completion:
        """Wait for the end and return the whole answer; the async form of :meth:`result`."""
        whole = WholeAnswer(self.num_choices)
        try:
            while chunks := await self._anext_chunks(self._channel.many_chunks):
                whole.add(chunks)
        except BaseException:
            self.abort()
            if whole.num_samples > NUM_AT_ONCE:
                asyncio.get_running_loop().run_in_executor(None, release, whole.samples)
            raise
        return self._completion(whole)

    def _completion(self, whole: WholeAnswer) -> Completion:
        return Completion(whole.choices(), self.usage, self.timings, self.prompt_token_ids)


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
