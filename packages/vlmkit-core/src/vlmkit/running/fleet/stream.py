"""The stream of a fleet: another worker answers if one is lost.

The other worker computes the answer again, with the same seed. The reader gets what follows the
part that it has. If the answers differ, the stream ends with an error.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence as Seq
from typing import TypeVar

from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import AnswerStream
from vlmkit.running.fleet.read_answer import OtherAnswerError, ReadAnswer
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage

T = TypeVar("T")


class FleetStream:
    """The stream of a worker, or of the one that took its place; dropping it aborts the request.

    Args:
        stream: the stream of the first worker.
        start_again: called with the error of a lost worker; returns the stream of another one, or
            raises the error if none may answer.
        on_first: called for each worker, when its first chunk has come or the answer has ended.
    """

    def __init__(
        self,
        stream: AnswerStream,
        start_again: Callable[[EngineError], AnswerStream],
        on_first: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._start_again = start_again
        self._on_first = on_first
        self._is_waiting = True
        self._read = ReadAnswer()
        self._aborted = threading.Event()

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
                    self._note_first()
                    yield from self._new([chunk])
            except OtherAnswerError:
                raise
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
        while chunks := await self._answered(lambda stream: stream.next_chunks()):
            self._note_first()
            if new := self._new(chunks):
                return new
        self._note_first()
        return []

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
        self._aborted.set()
        self._note_first()
        self._stream.abort()

    def _new(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return what the reader has not.

        Raises:
            OtherAnswerError: another worker gives another answer.
        """
        try:
            return self._read.new(chunks)
        except OtherAnswerError:
            self.abort()
            raise

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
            VlmkitError: the request was aborted, or no worker may answer.
        """
        self._note_first()
        if self._aborted.is_set():
            raise error
        self._stream = self._start_again(error)
        self._is_waiting = True
        self._read.begin_again()
        if self._aborted.is_set():  # meanwhile, in another thread
            self._stream.abort()

    def _note_first(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._on_first()
