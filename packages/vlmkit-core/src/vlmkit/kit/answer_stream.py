"""The stream of an answer that a runner receives from elsewhere, such as from another server.

The producer puts chunks into an :class:`AnswerBuffer`, in any thread. The reader gets an
:class:`AnswerReader`, which is an :class:`vlmkit.interfaces.runner.AnswerStream`. Only the buffer
may be kept by the runner: dropping the reader aborts the request.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence as Seq
from dataclasses import replace

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.kit.whole_answer import WholeAnswer
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage


class AnswerBuffer:
    """The unread chunks of one answer, with its usage and timings. Thread-safe.

    Args:
        prompt_token_ids: the tokens of the prompt, images expanded.
        num_choices: number of answers that the request asks for.
        max_unread: number of unread chunks at which the producer should pause.
        began: when the preparation of the prompt began, by ``time.perf_counter``.
        on_abort: called once, in any thread, if the reader stops before the end.
        on_caught_up: called, in any thread, when a reader that was behind has read everything.

    Attributes:
        usage: the tokens that the request used so far; the producer may add what it knows of the
            prompt.
        many_chunks: half of ``max_unread``; a reader of the whole answer waits for so many.
    """

    def __init__(
        self,
        prompt_token_ids: Seq[int],
        num_choices: int,
        *,
        max_unread: int,
        began: float,
        on_abort: Callable[[], None],
        on_caught_up: Callable[[], None],
    ) -> None:
        self.prompt_token_ids = tuple(prompt_token_ids)
        self.num_choices = num_choices
        self.usage = Usage(prompt_tokens=len(self.prompt_token_ids))
        self._max_unread = max_unread
        self.many_chunks = max(1, max_unread // 2)
        self._num_wanted = 1  # unread chunks that wake the reader
        self._on_abort = on_abort
        self._on_caught_up = on_caught_up
        self._changed = threading.Condition()
        self._future: asyncio.Future[None] | None = None
        self._chunks: list[Chunk] = []
        self._open = set(range(num_choices))
        self._reasons: list[FinishReason] = []
        self._error: VlmkitError | None = None
        self._began, self._submitted = began, time.perf_counter()
        self._began_s = time.time() - (self._submitted - began)
        self._started = self._first_token = self._ended = 0.0

    # For the producer.

    @property
    def is_behind(self) -> bool:
        """Whether so many chunks are unread that the producer should pause."""
        return len(self._chunks) >= self._max_unread

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended or failed: further chunks are ignored."""
        return self._error is not None or not self._open

    def start(self) -> None:
        """Record that the computation began."""
        self._started = self._started or time.perf_counter()

    def put(self, chunk: Chunk) -> None:
        """Add a chunk, and count its tokens; the last chunk of a choice has a finish reason.

        Raises:
            EngineError: it is the chunk of a choice that ended, or that was not requested.
        """
        with self._changed:
            if self.is_done:
                return
            if chunk.index not in self._open:
                raise EngineError(f"choice {chunk.index} has ended or was not requested")
            self.start()
            if chunk.samples:
                self._first_token = self._first_token or time.perf_counter()
                num_tokens = self.usage.completion_tokens + len(chunk.samples)
                self.usage = replace(self.usage, completion_tokens=num_tokens)
            self._take_in(chunk)
            self._wake()

    def fail(self, error: VlmkitError) -> None:
        """End the answer with an error, which is raised after the unread chunks."""
        with self._changed:
            if not self.is_done:
                self._error = error
                self._ended = time.perf_counter()
                self._wake()

    def abort(self) -> None:
        """End the open choices with the reason ``abort``; no effect if the answer has ended."""
        with self._changed:
            if self.is_done:
                return
            for index in sorted(self._open):
                self._take_in(Chunk(index, finish_reason="abort"))
            self._wake()
        self._on_abort()

    def _take_in(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self._open.remove(chunk.index)
            self._reasons.append(chunk.finish_reason)
        if not self._open:
            self._ended = time.perf_counter()

    def _wake(self) -> None:
        if not self._has_news():
            return
        self._changed.notify_all()
        if self._future is not None:
            future, self._future = self._future, None
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the event loop is closed, and with it the reader
                return

    # For the reader.

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """The finish reasons of the choices that ended, in the order in which they ended."""
        return tuple(self._reasons)

    @property
    def timings(self) -> Timings:
        """The time of the request's stages so far, in seconds."""

        def span(start: float, stop: float) -> float:
            return max(0.0, stop - start) if start and stop else 0.0

        return Timings(
            self._submitted - self._began,
            span(self._submitted, self._started),
            span(self._started, self._first_token),
            span(self._first_token, self._ended),
            self._began_s,
        )

    def take(self) -> list[Chunk] | None:
        """Return all unread chunks; an empty list at the end; None while more will come.

        Raises:
            VlmkitError: the request failed, and all its chunks were read.
        """
        with self._changed:
            was_behind = self.is_behind
            chunks, self._chunks = self._chunks, []
            is_done, error = self.is_done, self._error
        if was_behind:
            self._on_caught_up()
        if chunks:
            return chunks
        if error is not None:
            raise error
        return [] if is_done else None

    def wait(self, num_chunks: int) -> None:
        """Wait in this thread for so many unread chunks, or the end."""
        with self._changed:
            self._num_wanted = num_chunks
            self._changed.wait_for(self._has_news)

    def news(self, num_chunks: int) -> "asyncio.Future[None] | None":
        """Return a future that is done with so many unread chunks, or the end; None if it is now.

        Raises:
            EngineError: another reader waits.
        """
        with self._changed:
            self._num_wanted = num_chunks
            if self._has_news():
                return None
            if self._future is not None and not self._future.done():
                raise EngineError("a stream can be read by one reader at a time")
            self._future = asyncio.get_running_loop().create_future()
            return self._future

    def _has_news(self) -> bool:
        return len(self._chunks) >= self._num_wanted or self.is_done


class AnswerReader:
    """The stream of an answer in a buffer; dropping it aborts the request.

    Args:
        buffer: what the producer fills.
    """

    def __init__(self, buffer: AnswerBuffer) -> None:
        self._buffer = buffer

    def __del__(self) -> None:
        self._buffer.abort()

    @property
    def num_choices(self) -> int:
        """Number of answers that the request asks for."""
        return self._buffer.num_choices

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt, images expanded."""
        return self._buffer.prompt_token_ids

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        return self._buffer.usage

    @property
    def timings(self) -> Timings:
        """The time of the request's stages so far, in seconds."""
        return self._buffer.timings

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """The finish reasons of the choices that ended, in the order in which they ended."""
        return self._buffer.reasons

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they arrive.

        Raises:
            VlmkitError: the request failed.
        """
        try:
            while chunks := self._next_chunks(1):
                yield from chunks
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks as they arrive; the asynchronous form of iteration."""
        try:
            while chunks := await self.next_chunks():
                for chunk in chunks:
                    yield chunk
        finally:
            self.abort()

    def _next_chunks(self, num_chunks: int) -> list[Chunk]:
        self._buffer.wait(num_chunks)
        return self._buffer.take() or []

    async def next_chunks(self) -> list[Chunk]:
        """Wait for chunks and return all that arrived; empty at the end of the answer.

        Raises:
            VlmkitError: the request failed.
        """
        return await self._anext_chunks(1)

    async def _anext_chunks(self, num_chunks: int) -> list[Chunk]:
        chunks = None
        while chunks is None:
            if (news := self._buffer.news(num_chunks)) is not None:
                await news
            else:  # a reader that never has to wait lets other tasks run
                await asyncio.sleep(0)
            chunks = self._buffer.take()
        return chunks

    def result(self) -> Completion:
        """Wait for the end and return the whole completion.

        Raises:
            VlmkitError: the request failed.
        """
        whole = WholeAnswer(self.num_choices)
        try:
            while chunks := self._next_chunks(self._buffer.many_chunks):
                whole.add(chunks)
        finally:
            self.abort()
        return self._completion(whole)

    async def aresult(self) -> Completion:
        """Wait for the end and return the completion; the asynchronous form of ``result``."""
        whole = WholeAnswer(self.num_choices)
        try:
            while chunks := await self._anext_chunks(self._buffer.many_chunks):
                whole.add(chunks)
        finally:
            self.abort()
        return self._completion(whole)

    def abort(self) -> None:
        """Stop generating and free all resources; no effect if the answer has ended."""
        self._buffer.abort()

    def _completion(self, whole: WholeAnswer) -> Completion:
        return Completion(whole.choices(), self.usage, self.timings, self.prompt_token_ids)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
