"""Reads the wire format of protobuf messages in place: numbered fields with checked lengths.

Contains no message types. Copies nothing: a field of bytes is a range of the file. The format is
described at https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
MAX_VARINT_BYTES = 10


class MalformedMessage(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """The bytes are not a valid message; raised and caught within this package."""


class Field(NamedTuple):
    """One field.

    Attributes:
        number: of the field.
        kind: its wire type.
        value: of a varint, its value; else the offset of the first byte.
        stop: offset one past the last byte.
    """

    number: int
    kind: int
    value: int
    stop: int


class WireReader:
    """Reads fields of the messages in a file.

    Args:
        data: the file.
        max_fields: most fields to read in total, which limits the time for any file.
    """

    def __init__(self, data: mmap | bytes, max_fields: int) -> None:
        self._data = data
        self._num_left = max_fields

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """Yield the fields of the message in ``[start, stop)``.

        Raises:
            MalformedMessage: a field exceeds the message or has an unknown kind, or there are too
                many fields.
        """
        offset = start
        while offset < stop:
            self._num_left -= 1
            if self._num_left < 0:
                raise MalformedMessage("too many fields")
            tag, offset = self._varint(offset, stop)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise MalformedMessage("a field has number 0")
            if kind == VARINT:
                value, offset = self._varint(offset, stop)
                yield Field(number, kind, value, offset)
                continue
            if kind == BYTES:
                num_bytes, offset = self._varint(offset, stop)
            else:
                num_bytes = FIXED_BYTES.get(kind, -1)
            if not 0 <= num_bytes <= stop - offset:
                raise MalformedMessage("a field reaches over the end of its message")
            yield Field(number, kind, offset, offset + num_bytes)
            offset += num_bytes

    def text(self, field: Field, max_bytes: int) -> str:
        """Return a field of bytes as text.

        Raises:
            MalformedMessage: it has another kind, is too long or is not UTF-8.
        """
        start, stop = self.span(field)
        if stop - start > max_bytes:
            raise MalformedMessage("a name is too long")
        try:
            return self._data[start:stop].decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage("a name is not UTF-8") from error

    def span(self, field: Field) -> tuple[int, int]:
        """Return the range of a field of bytes.

        Raises:
            MalformedMessage: it has another kind.
        """
        if field.kind != BYTES:
            raise MalformedMessage("a field is of the wrong kind")
        return field.value, field.stop

    def integers(self, field: Field, most: int) -> list[int]:
        """Return the signed numbers of a repeated field of varints, packed or one by one.

        Raises:
            MalformedMessage: it has another kind, or holds more than ``most`` numbers.
        """
        if field.kind == VARINT:
            return [_signed(field.value)]
        offset, stop = self.span(field)
        numbers: list[int] = []
        while offset < stop:
            if len(numbers) == most:
                raise MalformedMessage("too many numbers")
            number, offset = self._varint(offset, stop)
            numbers.append(_signed(number))
        return numbers

    def integer(self, field: Field) -> int:
        """Return the signed number of a varint field.

        Raises:
            MalformedMessage: it has another kind.
        """
        if field.kind != VARINT:
            raise MalformedMessage("a field is of the wrong kind")
        return _signed(field.value)

    def _varint(self, offset: int, stop: int) -> tuple[int, int]:
        if offset < stop and (value := self._data[offset]) < 128:
            return value, offset + 1  # nearly all of them
        value = 0
        for index, byte in enumerate(self._data[offset : min(offset + MAX_VARINT_BYTES, stop)]):
            value |= (byte & 127) << 7 * index
            if byte < 128:
                return value & (2**64 - 1), offset + index + 1
        raise MalformedMessage("a number has no end")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
