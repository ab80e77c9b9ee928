"""An answer whose errors name fields of what was sent, although that is not kept while it comes.

An image can fail long after its request was accepted: when it is encoded.
"""

from collections.abc import Callable, Sequence as Seq
from typing import Protocol

from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.types.completion import Chunk, Completion, Timings, Usage
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, parts_of
from vlmkit.types.request import Request

Names = Seq[str | None]


class Answering(Protocol):
    """An answer, as far as it is read."""

    @property
    def usage(self) -> Usage:
        """What it took so far."""
        ...

    @property
    def timings(self) -> Timings:
        """Where its time went so far."""
        ...

    async def next_chunks(self) -> list[Chunk]:
        """Wait for, and return, everything that has come; empty when the answer is over."""
        ...

    async def aresult(self) -> Completion:
        """Wait for the end and return everything."""
        ...

    def abort(self) -> None:
        """Stop; harmless when it is over already."""
        ...


def media_names(request: Request, field_of: Callable[[RequestError], str | None]) -> Names:
    """Return what errors are to call the images and files of a request, in order.

    Args:
        request: as it was submitted.
        field_of: returns the field of what was sent that an error is about.
    """
    shown = sum(isinstance(part, ImagePart | FilePart) for part in parts_of(request.messages))
    return [field_of(_of_medium(index)) for index in range(shown or len(request.images))]


def naming_media(stream: Answering, names: Names) -> Answering:
    """Return an answer whose errors name the image or file that they are about."""
    return _Named(stream, names) if names else stream


def _of_medium(index: int) -> MediaError:
    error = ImageError("")
    error.index = index
    return error


class _Named:
    """Sets the field of errors as they pass."""

    def __init__(self, stream: Answering, names: Names) -> None:
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
