"""Adds field names to errors of an answer, after the request's body is gone.

An image can fail long after its request is accepted: when it is encoded.
"""

from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from typing import Protocol

from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.types.completion import Chunk, Completion, Timings, Usage
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, parts_of
from vlmkit.types.request import Request
from vlmkit_server.exchange.streaming import Chunks

Names = Seq[str | None]


class AnswerReader(Chunks, Protocol):
    """An answer that is read in chunks or as a whole."""

    async def aresult(self) -> Completion:
        """Wait for the end, and return the completion."""
        ...

    def abort(self) -> None:
        """Abort the answer; does nothing if it has ended."""
        ...


def media_names(request: Request, field_of: Callable[[RequestError], str | None]) -> Names:
    """Return the field name of each image and file of a request, in order.

    Args:
        request: the request, as it was submitted.
        field_of: returns the client's field that an error is about.
    """
    shown = sum(isinstance(part, ImagePart | FilePart) for part in parts_of(request.messages))
    return [field_of(_of_medium(index)) for index in range(shown or len(request.images))]


@contextmanager
def naming_fields(field_of: Callable[[RequestError], str | None]) -> Iterator[None]:
    """Set ``param`` of an error in the block to the field of the body that the client sent.

    Args:
        field_of: returns the field that an error is about.
    """
    try:
        yield
    except RequestError as error:
        error.param = field_of(error)
        raise


def naming_media(stream: AnswerReader, names: Names) -> AnswerReader:
    """Return an answer whose errors name the field of the image or file."""
    return _Named(stream, names) if names else stream


def _of_medium(index: int) -> MediaError:
    error = ImageError("")
    error.index = index
    return error


class _Named:
    """Sets the field name of errors that pass through."""

    def __init__(self, stream: AnswerReader, names: Names) -> None:
        self._stream = stream
        self._names = names
        self.abort = stream.abort

    @property
    def usage(self) -> Usage:
        return self._stream.usage

    @property
    def timings(self) -> Timings:
        return self._stream.timings

    async def next_chunks(self) -> list[Chunk]:
        try:
            return await self._stream.next_chunks()
        except MediaError as error:
            self._name(error)
            raise

    async def aresult(self) -> Completion:
        try:
            return await self._stream.aresult()
        except MediaError as error:
            self._name(error)
            raise

    def _name(self, error: MediaError) -> None:
        if error.index is not None and error.index < len(self._names):
            error.param = self._names[error.index]
