"""Frames: a head, and large buffers beside it, with their lengths in front.

A frame begins with ``VLMW``, the protocol version, the number of buffers and the length of the
head, in network byte order. The length of each buffer follows, then the head and the buffers. All
limits are checked before the content is read, and memory is allocated as content arrives. So no
length that a peer claims allocates memory.

Each reader raises :class:`vlmkit.errors.WireError` for a frame that it refuses. The rest of the
stream is then meaningless: close the connection.
"""

import asyncio
import struct
from collections.abc import Iterable, Sequence as Seq
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol, TypeAlias

from vlmkit.errors import WireError

MAGIC = b"VLMW"
PROTOCOL_VERSION = 2
"""Changes whenever a type, a field or the framing changes; peers must have the same."""

PIECE_BYTES = 2**20
_HEADER = struct.Struct(">4sHHI")
_LENGTH_BYTES = 8

Buffer: TypeAlias = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """One message.

    Attributes:
        head: the value, without its large buffers.
        buffers: the large buffers, in the order in which the head refers to them.
    """

    head: bytes | bytearray
    buffers: Seq[Buffer] = ()


class FrameLimits(NamedTuple):
    """The largest frame that a reader accepts.

    Attributes:
        max_head_bytes: maximum length of the head.
        max_buffers: maximum number of buffers.
        max_buffer_bytes: maximum length of all buffers together.
    """

    max_head_bytes: int = 64 * 2**20  # a prompt of a million tokens takes a few
    max_buffers: int = 4096
    max_buffer_bytes: int = 4 * 2**30


DEFAULT_LIMITS = FrameLimits()


class BinaryReader(Protocol):
    """A binary file open for reading, such as a pipe."""

    def read(self, num_bytes: int, /) -> bytes | None:
        """Return up to ``num_bytes`` bytes; none at the end."""
        ...


class BinaryWriter(Protocol):
    """A binary file open for writing, such as a pipe."""

    def write(self, content: Buffer, /) -> object:
        """Write the content, whole if the file is buffered."""
        ...

    def flush(self) -> object:
        """Pass on what is buffered."""
        ...


class FrameSplitter:
    """Splits a stream of bytes into frames, as the bytes arrive.

    Args:
        limits: the largest frame that it accepts.
    """

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._pending = bytearray()
        self._num_needed = _HEADER.size  # pending bytes with which there is more to read

    @property
    def is_within_frame(self) -> bool:
        """Whether only a part of a frame has arrived."""
        return bool(self._pending)

    def feed(self, content: Buffer) -> list[Frame]:
        """Add bytes, and return the frames that are complete now.

        Raises:
            WireError: a frame is not one of this version, or over the limits.
        """
        self._pending += content
        frames = []
        while len(self._pending) >= self._num_needed:
            if (frame := self._next()) is not None:
                frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        """Take the first frame; None if more bytes are needed than was known."""
        pending = self._pending
        num_buffers, head_bytes = _lengths(pending, self._limits)
        start = _HEADER.size + _LENGTH_BYTES * num_buffers
        sizes: Seq[int] = ()
        if num_buffers and len(pending) >= start:
            sizes = _sizes(pending[_HEADER.size : start], self._limits)
        end = start + head_bytes + sum(sizes)
        if len(pending) < end:
            self._num_needed = end if len(sizes) == num_buffers else start
            return None
        ends = accumulate(sizes, initial=start + head_bytes)
        buffers = [pending[a:b] for a, b in pairwise(ends)] if sizes else ()
        frame = Frame(pending[start : start + head_bytes], buffers)
        del pending[:end]
        self._num_needed = _HEADER.size
        return frame


def read_frame(file: BinaryReader, limits: FrameLimits = DEFAULT_LIMITS) -> Frame:
    """Read a frame from a binary file.

    Raises:
        EOFError: the file ended, also within the frame.
        WireError: the frame is not one of this version, or over the limits.
    """
    num_buffers, head_bytes = _lengths(_exactly(file, _HEADER.size), limits)
    if not num_buffers:
        return Frame(_exactly(file, head_bytes))
    sizes = _sizes(_exactly(file, _LENGTH_BYTES * num_buffers), limits)
    head = _exactly(file, head_bytes)
    return Frame(head, [_exactly(file, size) for size in sizes])


async def aread_frame(reader: asyncio.StreamReader, limits: FrameLimits = DEFAULT_LIMITS) -> Frame:
    """Read a frame from an asyncio stream; errors are those of :func:`read_frame`."""
    num_buffers, head_bytes = _lengths(await reader.readexactly(_HEADER.size), limits)
    sizes: Seq[int] = ()
    if num_buffers:
        sizes = _sizes(await reader.readexactly(_LENGTH_BYTES * num_buffers), limits)
    head = await reader.readexactly(head_bytes)
    return Frame(head, [bytearray(await reader.readexactly(size)) for size in sizes])


def write_frame(file: BinaryWriter, frame: Frame) -> None:
    """Write a frame to a buffered binary file, and flush it.

    Raises:
        OSError: the file is closed, or its other end is.
    """
    for part in frame_parts(frame):
        file.write(part)
    file.flush()


async def awrite_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Write a frame to an asyncio stream; return when its buffer has room again.

    Raises:
        OSError: the connection is closed.
    """
    for part in frame_parts(frame):
        writer.write(memoryview(part))
    await writer.drain()


def frame_parts(frame: Frame) -> list[Buffer]:
    """Return the bytes of a frame in pieces; the first one includes the head.

    Raises:
        WireError: the frame is over what a frame's header can state.
    """
    head, buffers = frame
    try:
        header = _HEADER.pack(MAGIC, PROTOCOL_VERSION, len(buffers), len(head))
    except struct.error as error:
        raise WireError("a message is too large for a frame") from error
    if not buffers:
        return [header + head]
    sizes = [memoryview(buffer).nbytes for buffer in buffers]
    lengths = struct.pack(f">{len(sizes)}Q", *sizes)
    return [b"".join((header, lengths, head)), *buffers]


def check_limits(frame: Frame, limits: FrameLimits = DEFAULT_LIMITS) -> None:
    """Check that a reader with some limits accepts the lengths of a frame.

    Raises:
        WireError: it does not.
    """
    _check_head(len(frame.buffers), len(frame.head), limits)
    _check_buffers((memoryview(buffer).nbytes for buffer in frame.buffers), limits)


def _lengths(header: Buffer, limits: FrameLimits) -> tuple[int, int]:
    """Return the number of buffers and the length of the head, which the first bytes state.

    Raises:
        WireError: it is no header of this version, or over a limit.
    """
    magic, version, num_buffers, head_bytes = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise WireError("a connection does not speak vlmkit's protocol")
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"a frame has protocol version {version}, and this program {PROTOCOL_VERSION}",
            hint="install the same version of vlmkit-core at both ends",
        )
    _check_head(num_buffers, head_bytes, limits)
    return num_buffers, head_bytes


def _check_head(num_buffers: int, head_bytes: int, limits: FrameLimits) -> None:
    if head_bytes > limits.max_head_bytes:
        raise WireError(f"a frame's head is over the limit of {limits.max_head_bytes} bytes")
    if num_buffers > limits.max_buffers:
        raise WireError(f"a frame has over {limits.max_buffers} buffers")


def _sizes(content: Buffer, limits: FrameLimits) -> Seq[int]:
    """Return the lengths of buffers.

    Raises:
        WireError: they are over the limit together.
    """
    sizes = struct.unpack(f">{memoryview(content).nbytes // _LENGTH_BYTES}Q", content)
    _check_buffers(sizes, limits)
    return sizes


def _check_buffers(sizes: Iterable[int], limits: FrameLimits) -> None:
    if sum(sizes) > limits.max_buffer_bytes:
        raise WireError(f"a frame's buffers are over {limits.max_buffer_bytes} bytes")


def _exactly(file: BinaryReader, num_bytes: int) -> bytearray:
    """Read so many bytes, never more than twice those that have arrived at once."""
    content = bytearray(file.read(min(num_bytes, PIECE_BYTES)) or b"")
    while (left := num_bytes - len(content)) > 0:
        piece = file.read(min(left, max(PIECE_BYTES, len(content))))
        if not piece:
            raise EOFError
        content += piece
    return content
