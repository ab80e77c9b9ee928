"""Large content beside the head of a frame: files, pixels and arrays.

The head refers to a buffer by its index. A buffer that two values share is sent once.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import WireError
from vlmkit.types.image import Image, ImageState
from vlmkit.wire.frames import Buffer

SMALL_BYTES = 256
"""Content up to this length travels in the head."""

MAX_AXES = 32
DTYPES = frozenset(
    np.dtype(name).str
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


class NotSerializable(Exception):  # noqa: N818 - no error for users: callers handle it
    """A value is of no listed type, or too deep."""


class SentArray(msgspec.Struct, tag="array", array_like=True, forbid_unknown_fields=True):
    """An array, as the head describes it."""

    buffer: int
    dtype: str
    shape: list[int]


class SentImage(msgspec.Struct, tag="image", array_like=True, forbid_unknown_fields=True):
    """An image, as the head describes it: a file, pixels, or a size alone."""

    source_size: tuple[int, int]
    size: tuple[int, int] | None
    is_turned: bool | None
    cost: tuple[int, int, int]
    file: int | None
    pixels: int | None


class OutgoingBuffers:
    """The buffers of a frame that is written.

    Attributes:
        contents: the buffers so far.
    """

    def __init__(self) -> None:
        self.contents: list[Buffer] = []
        self._indices: dict[int, int] = {}
        self._held: list[object] = []  # so that no other object gets the same id

    def index_of(self, content: Buffer, source: object) -> int:
        """Return the index of some content; that of the same source is added once."""
        index = self._indices.setdefault(id(source), len(self.contents))
        if index == len(self.contents):
            self.contents.append(content)
            self._held.append(source)
        return index

    def pack_bytes(self, content: bytes) -> bytes | int:
        """Return small content itself, and the index of large content."""
        return content if len(content) <= SMALL_BYTES else self.index_of(content, content)

    def pack_array(self, array: Any) -> SentArray:
        """Return the description of an array, whose elements become a buffer.

        Raises:
            NotSerializable: it is on a device, or NumPy does not know the type of its elements.
        """
        try:
            given = array if isinstance(array, np.ndarray) else np.from_dlpack(array)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise NotSerializable("an array that NumPy cannot read") from error
        plain = np.ascontiguousarray(given).reshape(given.shape)
        if plain.dtype.str not in DTYPES:
            raise NotSerializable(f"an array of {plain.dtype}")
        content = plain.reshape(-1).view(np.uint8).data
        return SentArray(self.index_of(content, array), plain.dtype.str, list(plain.shape))

    def pack_image(self, image: Image) -> SentImage:
        """Return the description of an image, whose file or pixels become a buffer.

        Raises:
            NotSerializable: a plugin's decoder opens it, which the other end may not have.
        """
        state = image.state
        if state.decoder:
            raise NotSerializable("an image of a plugin's decoder")
        file = pixels = None
        if state.content:
            file = self.index_of(state.content, state.content)
        elif state.pixels is not None:
            pixels = self.index_of(state.pixels, image)
        peak, held, prepare = state.cost
        cost = (peak, held, prepare)
        return SentImage(state.source_size, state.size, state.is_turned, cost, file, pixels)


class IncomingBuffers:
    """The buffers of a frame that was read.

    Args:
        contents: the buffers.
    """

    def __init__(self, contents: Seq[Buffer]) -> None:
        self._contents = contents
        self._used: set[int] = set()
        self._bytes: dict[int, bytes] = {}
        self._images: dict[tuple[int | None, int | None], Image] = {}

    def check_all_used(self) -> None:
        """Check that the head referred to every buffer.

        Raises:
            WireError: it did not.
        """
        if len(self._used) != len(self._contents):
            raise WireError("a frame has a buffer to which its head does not refer")

    def unpack_bytes(self, sent: bytes | int) -> bytes:
        """Return the content of a value."""
        if isinstance(sent, bytes):
            return sent
        if sent not in self._bytes:
            self._bytes[sent] = bytes(self._buffer(sent))
        return self._bytes[sent]

    def unpack_array(self, sent: SentArray) -> NDArray[Any]:
        """Return an array over the memory of its buffer.

        Raises:
            WireError: its type, its shape or its length is wrong.
        """
        content = self._buffer(sent.buffer)
        if sent.dtype not in DTYPES or len(sent.shape) > MAX_AXES or min(sent.shape, default=0) < 0:
            raise WireError("a frame has an array of an unknown type or shape")
        dtype = np.dtype(sent.dtype)
        if math.prod(sent.shape) * dtype.itemsize != memoryview(content).nbytes:
            raise WireError("a frame has an array of another length than its shape")
        return np.frombuffer(content, dtype).reshape(sent.shape)

    def unpack_image(self, sent: SentImage) -> Image:
        """Return an image; an image that occurs twice is one object.

        Raises:
            WireError: its sizes are wrong.
        """
        key = (sent.file, sent.pixels)
        if key in self._images:
            return self._images[key]
        state = ImageState(
            sent.source_size,
            sent.size,
            sent.is_turned,
            b"" if sent.file is None else self.unpack_bytes(sent.file),
            None if sent.pixels is None else self._buffer(sent.pixels),
            sent.cost,
        )
        try:
            image = Image.of_state(state)
        except ValueError as error:
            raise WireError("a frame has an image of another size than its pixels") from error
        if key != (None, None):
            self._images[key] = image
        return image

    def _buffer(self, index: int) -> Buffer:
        if not 0 <= index < len(self._contents):
            raise WireError("a frame refers to a buffer that it does not have")
        self._used.add(index)
        return self._contents[index]


NO_BUFFERS = IncomingBuffers(())
"""Those of a frame without any: it keeps nothing of the values that it unpacks."""
