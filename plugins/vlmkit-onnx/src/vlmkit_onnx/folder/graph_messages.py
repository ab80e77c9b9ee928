"""Reads the messages of an ONNX file that describe values and tensors, without their data.

Field numbers are those of onnx.proto. ``graph_header`` walks the graph.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vlmkit_onnx.folder.protobuf_wire import Field, MalformedMessage, WireReader

MAX_RECORDS = 200_000  # operators, weights and values that are stored
MAX_NAME_BYTES = 4096
MAX_DIMENSIONS = 32
ELEMENT_TYPES = {
    0: ("", 0),
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}
"""Name and bits of each element type, by number."""


class TensorInfo(NamedTuple):
    """An input or output of a graph.

    Attributes:
        element_type: by numpy's name, such as ``float32``; empty if the value is not a tensor.
        shape: a number or a name for each axis, an empty name if neither is stated; None if the
            rank is not stated.
    """

    element_type: str
    shape: tuple[int | str, ...] | None


class ExternalTensor(NamedTuple):
    """A tensor whose numbers are in another file.

    Attributes:
        name: of the tensor.
        location: of the file, relative to the graph's folder.
        offset: of its first byte.
        num_bytes: its size.
    """

    name: str
    location: str
    offset: int
    num_bytes: int


class MessageReader:
    """Reads values and tensors, and counts what it stores.

    Attributes:
        external: tensors whose numbers are in other files.
    """

    def __init__(self, wire: WireReader) -> None:
        self._wire = wire
        self._num_records = 0
        self.external: list[ExternalTensor] = []

    def _entry(self, message: Field) -> tuple[str, str]:
        texts = {1: "", 2: ""}
        for item in self.fields(self._wire.span(message)):
            if item.number in texts:
                texts[item.number] = self.text(item)
        return texts[1], texts[2]

    def value(self, message: Field) -> tuple[str, TensorInfo]:
        """Return name and type of an input or output."""
        name, info = "", TensorInfo("", None)
        for item in self.fields(self._wire.span(message), singular=(2,)):
            if item.number == 1:
                name = self.text(item)
            elif item.number == 2:
                info = self._type(item)
        return name, info

    def _type(self, message: Field) -> TensorInfo:
        info = TensorInfo("", None)
        for item in self.fields(self._wire.span(message), singular=(1,)):
            if item.number == 1:
                info = self._tensor_type(item)
        return info

    def _tensor_type(self, message: Field) -> TensorInfo:
        element_type, shape = "", None
        for item in self.fields(self._wire.span(message), singular=(2,)):
            if item.number == 1:
                element_type = _element_type(self._wire.integer(item))[0]
            elif item.number == 2:
                shape = tuple(self._axis(axis) for axis in self.fields(self._wire.span(item)))
        return TensorInfo(element_type, shape)

    def _axis(self, message: Field) -> int | str:
        axis: int | str = ""
        if message.number != 1:
            raise MalformedMessage("a shape holds something else than axes")
        for item in self.fields(self._wire.span(message)):
            if item.number == 1:
                axis = self._wire.integer(item)
            elif item.number == 2:
                axis = self.text(item)
        return axis

    def fields(self, span: tuple[int, int], singular: tuple[int, ...] = ()) -> Iterator[Field]:
        """Yield the fields of a message.

        Protobuf readers would merge two messages of a singular field, so two are refused.

        Raises:
            MalformedMessage: a singular field occurs twice.
        """
        seen: set[int] = set()
        for item in self._wire.fields(*span):
            if item.number in singular:
                if item.number in seen:
                    raise MalformedMessage("a part is there twice")
                seen.add(item.number)
            yield item

    def count_record(self) -> None:
        """Count a stored record.

        Raises:
            MalformedMessage: there are too many.
        """
        self._num_records += 1
        if self._num_records > MAX_RECORDS:
            raise MalformedMessage("there is too much in it")

    def text(self, item: Field) -> str:
        """Return a field as text."""
        return self._wire.text(item, MAX_NAME_BYTES)

    def tensor(self, message: Field) -> str:
        """Record a tensor in another file; return the name of any tensor."""
        name, kind, shape = "", 0, list[int]()
        stated: dict[str, str] = {}
        for item in self.fields(self._wire.span(message)):
            if item.number == 1:
                shape += self._wire.integers(item, MAX_DIMENSIONS)
                if len(shape) > MAX_DIMENSIONS:
                    raise MalformedMessage("a tensor has too many axes")
            elif item.number == 2:
                kind = self._wire.integer(item)
            elif item.number == 8:
                name = self.text(item)
            elif item.number == 13:
                key, value = self._entry(item)
                if key in stated:
                    raise MalformedMessage("external data are stated twice")
                stated[key] = value
        if stated:
            self.count_record()
            self.external.append(_external(name, stated, _num_bytes(kind, shape)))
        return name

    def sparse(self, message: Field) -> None:
        """Read the tensors of a sparse tensor."""
        for item in self.fields(self._wire.span(message), singular=(1, 2)):
            if item.number in (1, 2):
                self.tensor(item)


def _element_type(number: int) -> tuple[str, int]:
    if number not in ELEMENT_TYPES:
        raise MalformedMessage("an element type is unknown")
    return ELEMENT_TYPES[number]


def _num_bytes(kind: int, shape: list[int]) -> int:
    num_bits = _element_type(kind)[1]
    if any(axis < 0 for axis in shape) or not num_bits:
        raise MalformedMessage("a tensor in another file has no size")
    for axis in shape:
        num_bits *= axis
    return -(-num_bits // 8)


def _external(name: str, stated: dict[str, str], num_bytes: int) -> ExternalTensor:
    """Return the location of a tensor in another file; ``stated`` has the format's names."""
    if unknown := stated.keys() - {"location", "offset", "length", "checksum"}:
        raise MalformedMessage(f"external data have {len(unknown)} unknown properties")
    offset, length = (_count(stated.get(key, "0")) for key in ("offset", "length"))
    if length not in (0, num_bytes):
        raise MalformedMessage("external data are not as long as their tensor")
    return ExternalTensor(name, stated.get("location", ""), offset, num_bytes)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise MalformedMessage("a place in another file is no number")
    return int(text)
