"""Merges the answers to several requests into one, with the choices and the usage of all."""

import asyncio
from collections.abc import Sequence as Seq

from msgspec.structs import replace

from vlmkit.interfaces.runner import AnswerStream
from vlmkit.types.completion import Chunk, Completion, Timings, Usage
from vlmkit_server.gather import gather


class MergedStream:
    """Reads several answers concurrently.

    Args:
        streams: accepted answers, each with the same number of choices.
    """

    def __init__(self, streams: Seq[AnswerStream]) -> None:
        self._streams = streams
        self._num_choices_each = streams[0].num_choices
        self._pending_reads: dict[asyncio.Task[list[Chunk]], int] | None = None

    @property
    def usage(self) -> Usage:
        """The tokens of all answers so far."""
        return total_usage([stream.usage for stream in self._streams])

    @property
    def timings(self) -> Timings:
        """The timings so far; each is the longest of all answers."""
        return _longest([stream.timings for stream in self._streams])

    async def next_chunks(self) -> list[Chunk]:
        """Wait for new chunks of any answer and return them; empty when all answers have ended.

        Raises:
            VlmkitError: an answer failed.
        """
        if self._pending_reads is None:
            self._pending_reads = {
                self._read(number): number for number in range(len(self._streams))
            }
        while self._pending_reads:
            done, _ = await asyncio.wait(self._pending_reads, return_when=asyncio.FIRST_COMPLETED)
            chunks_read = []
            for task, number in [(task, self._pending_reads.pop(task)) for task in done]:
                if chunks := task.result():
                    self._pending_reads[self._read(number)] = number
                    first = number * self._num_choices_each
                    chunks_read += [replace(chunk, index=chunk.index + first) for chunk in chunks]
            if chunks_read:
                return chunks_read
        return []

    async def aresult(self) -> Completion:
        """Wait for the end of all answers and return them as one.

        Raises:
            VlmkitError: an answer failed.
        """
        done = await gather(_result, self._streams, len(self._streams))
        return Completion(
            [choice for each in done for choice in each.choices],
            total_usage([each.usage for each in done]),
            _longest([each.timings for each in done]),
        )

    def abort(self) -> None:
        """Stop all answers; has no effect on those that have ended."""
        for task in self._pending_reads or ():
            task.cancel()
        for stream in self._streams:
            stream.abort()

    def _read(self, number: int) -> "asyncio.Task[list[Chunk]]":
        task = asyncio.ensure_future(self._streams[number].next_chunks())
        task.add_done_callback(_retrieve_exception)
        return task


def _retrieve_exception(task: "asyncio.Task[list[Chunk]]") -> None:
    """Mark an exception as retrieved; it is not reported if another answer failed first."""
    if not task.cancelled():
        task.exception()


async def _result(stream: AnswerStream) -> Completion:
    return await stream.aresult()


def total_usage(usages: Seq[Usage]) -> Usage:
    """Return the usage of several answers together."""
    return Usage(
        sum(each.prompt_tokens for each in usages),
        sum(each.completion_tokens for each in usages),
        sum(each.cached_tokens for each in usages),
        tuple(num for each in usages for num in each.image_tokens),
        sum(each.reasoning_tokens for each in usages),
        tuple(image for each in usages for image in each.images),
    )


def _longest(timings: Seq[Timings]) -> Timings:
    return Timings(
        max(each.prompt_s for each in timings),
        max(each.queue_s for each in timings),
        max(each.first_token_s for each in timings),
        max(each.decode_s for each in timings),
        min(each.began_s for each in timings),
        tuple(image for each in timings for image in each.images),
    )
