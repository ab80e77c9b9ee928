"""Where an answer's chunks wait between the loop's thread and the one who asked.

The loop holds this end, the reader holds a stream. A channel is bounded in what it tells: a
sequence whose reader is behind is held by the loop until the reader has caught up.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType

from vlmkit.errors import EngineError, MediaError, VlmkitError
from vlmkit.interfaces.observer import RequestEnd, RequestFacts
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.engine_loop.wakeups import Wakeups
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.types.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.types.shown_image import ShownImage
from vlmkit.types.stage import NO_STAGE, ImageTimings, Stage


class Clock:
    """Notes the moments of one request's life; each only once."""

    def __init__(self, prompt_s: float = 0.0) -> None:
        self._prompt_s = prompt_s
        self._began_s = time.time() - prompt_s
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
            self._began_s,
        )


class Channel:
    """Where the chunks of one request wait for its reader; the loop holds this end.

    Args:
        facts: what is known of the request.
        max_unread_tokens: unread chunks for each choice at which the sequences are held.
        images: how each image is shown, by its place among the media of the prompt, as if nothing
            were encoded for it.
        encoded: those places for which something was, and when; the loop adds to them.
        image_timings: where the time of each image went until it could be encoded, by those places.
        sent: which of the images and files that were sent each image is of, by those places.
        account: whose turn it takes; the tenant's when empty.
        observers: who is told how the request fares; None where nobody listens.

    Attributes:
        is_behind: whether the reader has too much unread.
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
    ) -> None:
        self.facts = facts
        self.account = account or facts.tenant
        self.num_choices = num_choices = facts.params.n
        self.clock = Clock(facts.prompt_s)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.answers: list[AnswerText] = []  # which know how many of their tokens are reasoning
        self._images = images
        self._encoded = encoded
        self._image_timings = image_timings
        self._sent = sent
        self._max_unread = max_unread_tokens * num_choices
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._num_waiting = 0  # threads
        self._future: asyncio.Future[None] | None = None
        self._chunks: list[Chunk] = []
        self._num_open = num_choices
        self._reasons: list[FinishReason] = []
        self._observers = observers
        self._is_accepted = False
        self.is_behind = False
        self._error: VlmkitError | None = None

    # The loop's side: called in the loop's thread.

    def accept(self, wakeups: Wakeups) -> None:
        """Note that the scheduler took the request."""
        with self._lock:
            if self._observers is not None and not self._is_accepted:
                self._observers.tell("accepted", self.facts)
            self._is_accepted = True
            self._wake(wakeups)

    def put(self, chunk: Chunk, wakeups: Wakeups) -> None:
        """Hand one chunk over."""
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
        """End the whole request with an error, after the chunks that are there.

        An error of one of the prompt's media is passed on as one of what was sent.
        """
        if isinstance(error, MediaError) and (place := error.index) is not None:
            error = copy(error)
            error.index = self._sent.get(place)
        with self._lock:
            self.clock.end()
            if self._observers is not None and not self.is_done:
                self._observers.tell("failed", self.facts, error)
            self._error = self._error or error
            self._wake(wakeups)

    def _tell(self, observers: ObserverDispatch, chunk: Chunk) -> None:
        if chunk.samples and self.completion_tokens == len(chunk.samples):
            observers.tell("first_token", self.facts)
        observers.tell("tokens", self.facts, chunk)
        if not self._num_open:
            end = RequestEnd(tuple(self._reasons), self.usage, self.timings)
            observers.tell("finished", self.facts, end)

    def _wake(self, wakeups: Wakeups) -> None:
        if self._num_waiting:
            self._news.notify_all()
        if self._future is not None:
            wakeups.add(self._future)
            self._future = None

    # The reader's side.

    @property
    def usage(self) -> Usage:
        """What the request took so far."""
        return Usage(
            self.facts.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.facts.image_tokens,
            sum(answer.num_reasoning_tokens for answer in self.answers),
            tuple(
                replace(image, is_cached=place not in self._encoded)
                for place, image in self._images.items()
            ),
        )

    @property
    def timings(self) -> Timings:
        """Where the request's time went so far."""
        timings = self.clock.timings()
        if not self._image_timings:
            return timings
        images = tuple(
            replace(each, encode=self._encoded.get(place, NO_STAGE))
            for place, each in self._image_timings.items()
        )
        return replace(timings, images=images)

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """Why those choices ended that have."""
        return tuple(self._reasons)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._error is not None or not self._num_open

    def take(self, resume: Callable[[], None]) -> list[Chunk] | None:
        """Return all unread chunks, an empty list at the end, or None when more will come.

        Raises:
            VlmkitError: the request failed, and its chunks were taken before.
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

    def wait(self) -> None:
        """Wait until :meth:`take` has something to say."""
        with self._lock:
            self._num_waiting += 1
            try:
                self._news.wait_for(self._has_news)
            finally:
                self._num_waiting -= 1

    def news(self) -> "asyncio.Future[None] | None":
        """Return what is done when :meth:`take` has something to say; None if it has already.

        Raises:
            EngineError: another reader waits for that.
        """
        with self._lock:
            return None if self._has_news() else self._next_change()

    async def accepted(self) -> None:
        """Wait until the scheduler took the request.

        Raises:
            VlmkitError: it was refused.
        """
        while (change := self._acceptance()) is not None:
            await change
        if self._error is not None and not self._chunks:
            raise self._error

    def _has_news(self) -> bool:
        return bool(self._chunks) or self.is_done

    def _acceptance(self) -> "asyncio.Future[None] | None":
        with self._lock:
            return None if self._is_accepted or self.is_done else self._next_change()

    def _next_change(self) -> "asyncio.Future[None]":
        """Return what is done when the loop has done something; to be called under the lock."""
        if self._future is not None and not self._future.done():
            raise EngineError("a stream can be read by one reader at a time")
        self._future = asyncio.get_running_loop().create_future()
        return self._future
