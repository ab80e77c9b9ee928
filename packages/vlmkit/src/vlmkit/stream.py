"""The reader's end of an answer: by iteration, by async iteration, or whole.

One stream serves all ``n`` choices of a request. A stream that nobody keeps ends its request.
"""

from collections.abc import AsyncIterator, Callable, Iterator

from vlmkit.channel import Channel
from vlmkit.completion import Choice, Chunk, Completion, Timings, Usage


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
        whole = _Whole(self.num_choices)
        for chunk in self:
            whole.add(chunk)
        return Completion(whole.choices(), self.usage, self.timings)

    async def aresult(self) -> Completion:
        """Wait for the end and return everything; the asynchronous form of :meth:`result`."""
        whole = _Whole(self.num_choices)
        async for chunk in self:
            whole.add(chunk)
        return Completion(whole.choices(), self.usage, self.timings)


class _Whole:
    """Puts the chunks of an answer together, and their texts last: so a long one is copied once."""

    def __init__(self, num_choices: int) -> None:
        self._choices = [Choice() for _ in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]

    def add(self, chunk: Chunk) -> None:
        choice = self._choices[chunk.index]
        self._texts[chunk.index].append(chunk.text)
        choice.samples.extend(chunk.samples)
        choice.finish_reason = chunk.finish_reason or choice.finish_reason

    def choices(self) -> list[Choice]:
        for choice, texts in zip(self._choices, self._texts, strict=True):
            choice.text = "".join(texts)
        return self._choices
