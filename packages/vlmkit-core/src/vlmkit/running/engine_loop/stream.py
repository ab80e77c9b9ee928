"""The stream of an answer: iterate over it, in async code or not, or wait for the whole answer.

One stream serves all ``n`` choices of a request. Dropping the last reference aborts the request.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from vlmkit.kit.heap import NUM_AT_ONCE, release
from vlmkit.kit.whole_answer import WholeAnswer
from vlmkit.running.engine_loop.channel import Channel
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage


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
        """Wait for unread chunks and return all of them; an empty list at the end.

        Raises:
            VlmkitError: the request failed.
        """
        chunks = None
        while chunks is None:
            if (news := self._channel.news()) is not None:
                await news
            else:  # a reader that never has to wait lets other tasks run
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
        for chunk in self:
            whole.add(chunk)
        return self._completion(whole)

    async def aresult(self) -> Completion:
        """Wait for the end and return the whole answer; the async form of :meth:`result`."""
        whole = WholeAnswer(self.num_choices)
        try:
            async for chunk in self:
                whole.add(chunk)
        except BaseException:
            if whole.num_samples > NUM_AT_ONCE:
                asyncio.get_running_loop().run_in_executor(None, release, whole.samples)
            raise
        return self._completion(whole)

    def _completion(self, whole: WholeAnswer) -> Completion:
        return Completion(whole.choices(), self.usage, self.timings, self.prompt_token_ids)
