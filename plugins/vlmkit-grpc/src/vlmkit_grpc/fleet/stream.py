"""The stream of a fleet: another worker answers if one is lost before the first token."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence as Seq
from typing import Protocol, TypeVar

from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import AnswerStream
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage

T = TypeVar("T")


class StartAgain(Protocol):
    """Returns the stream of another worker."""

    def __call__(self, error: EngineError, *, is_read: bool) -> AnswerStream:
        """Return the stream, or raise the error if no other worker may answer.

        Args:
            error: how the stream of the worker ended.
            is_read: whether a reader has a part of its answer.
        """
        ...


class FleetStream:
    """The stream of a worker, or of the one that took its place; dropping it aborts the request.

    A reader of the whole answer has seen nothing before its end, so another worker may answer at
    any time.

    Args:
        stream: the stream of the first worker.
        start_again: returns the stream of another worker.
        on_first: called once, when the first chunk has come or the answer has ended.
    """

    def __init__(
        self,
        stream: AnswerStream,
        start_again: StartAgain,
        on_first: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._start_again = start_again
        self._on_first: Callable[[], None] | None = on_first
        self._is_read = False
        self._is_aborted = False

    def __del__(self) -> None:
        self._note_first()

    @property
    def num_choices(self) -> int:
        """Number of answers that the request asks for."""
        return self._stream.num_choices

    @property
    def prompt_token_ids(self) -> Seq[int]:
        """The tokens of the prompt, images expanded."""
        return self._stream.prompt_token_ids

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        return self._stream.usage

    @property
    def timings(self) -> Timings:
        """The time of the request's stages so far, in seconds."""
        return self._stream.timings

    @property
    def reasons(self) -> Seq[FinishReason]:
        """The finish reasons of the choices that ended, in the order in which they ended."""
        return self._stream.reasons

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they arrive.

        Raises:
            VlmkitError: the request failed.
        """
        while True:
            try:
                for chunk in self._stream:
                    self._note_read()
                    yield chunk
            except EngineError as error:
                self._replace(error)
            else:
                self._note_first()
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks as they arrive; the asynchronous form of iteration."""
        try:
            while chunks := await self.next_chunks():
                for chunk in chunks:
                    yield chunk
        finally:
            self.abort()

    async def next_chunks(self) -> list[Chunk]:
        """Wait for chunks and return all that arrived; empty at the end of the answer.

        Raises:
            VlmkitError: the request failed.
        """
        chunks = await self._answered(lambda stream: stream.next_chunks())
        self._note_read()
        return chunks

    def result(self) -> Completion:
        """Wait for the end and return the whole completion.

        Raises:
            VlmkitError: the request failed.
        """
        while True:
            try:
                return self._stream.result()
            except EngineError as error:
                self._replace(error)
            finally:
                self._note_first()

    async def aresult(self) -> Completion:
        """Wait for the end and return the completion; the asynchronous form of ``result``."""
        try:
            return await self._answered(lambda stream: stream.aresult())
        finally:
            self._note_first()

    def abort(self) -> None:
        """Stop generating and free all resources; no effect if the answer has ended."""
        self._is_aborted = True
        self._note_first()
        self._stream.abort()

    async def _answered(self, read: Callable[[AnswerStream], Awaitable[T]]) -> T:
        """Read the stream, and that of another worker if one is lost."""
        while True:
            try:
                return await read(self._stream)
            except EngineError as error:
                await asyncio.to_thread(self._replace, error)

    def _replace(self, error: EngineError) -> None:
        """Let another worker answer.

        Raises:
            VlmkitError: a part of the answer was read already, or no worker may answer.
        """
        try:
            stream = self._start_again(error, is_read=self._is_read or self._is_aborted)
        except BaseException:
            self._note_first()
            raise
        self._stream = stream
        if self._is_aborted:  # meanwhile, in another thread
            stream.abort()

    def _note_read(self) -> None:
        self._is_read = True
        self._note_first()

    def _note_first(self) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()
