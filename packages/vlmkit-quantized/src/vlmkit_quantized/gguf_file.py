"""The header and the tensors of a GGUF file, in bounded time and memory.

Source of the format: ``docs/gguf.md`` of ggml, versions 2 and 3. Reads weights only when they are
asked for, one tensor or some rows of it at a time. A file is never mapped into memory, because a
process that reads a mapped file ends when another one shortens it. Does not know which model a file
has.
"""

import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vlmkit.kit.single_file import pieces_of
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_blocks import BLOCK_FORMATS
from vlmkit_quantized.stored import TYPES, Floats, widened
from vlmkit_quantized.weight import QuantizedLinear

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**26  # vocabularies of 260,000 tokens take up to 10 MB
MAX_ENTRIES = 2**16  # fields, and tensors
MAX_STRINGS = 2**21  # in all arrays; merges of large vocabularies are 500,000
MAX_NAME_BYTES = 2**10
MAX_AXES = 4
MAX_ALIGNMENT = 2**16
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Types of fields that are numbers, with those of NumPy."""

FIELD_TYPES = (
    *("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "BOOL", "STRING"),
    *("ARRAY", "UINT64", "INT64", "FLOAT64"),
)
"""Types of fields, by their numbers."""

PLAIN = {"F32": 4, "F16": 2, "BF16": 2}
TYPE_NAMES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Types of tensors, by their numbers."""


Version = tuple[int, int, int]
"""The inode, the size in bytes and the time of the last change of a file."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a file.

    Attributes:
        file: the file.
        version: of the file whose header was read.
        begin: the offset of its first byte in the file.
        type: such as ``Q4_K`` or ``F32``.
        shape: the sizes of its axes; the numbers of the last one lie side by side.
    """

    file: Path
    version: Version
    begin: int
    type: str
    shape: tuple[int, ...]

    @property
    def is_quantized(self) -> bool:
        """Whether it has blocks of numbers of few bits."""
        return self.type in BLOCK_FORMATS

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return prod(self.shape[:-1]) * self._row_bytes

    def linear(self, first: int = 0, end: int | None = None) -> QuantizedLinear:
        """Return some rows in their quantized form; all axes but the last count rows.

        Args:
            first: the first row.
            end: the row after the last one; None for all that follow.

        Raises:
            FormatError: a scale is not finite, or the file has changed.
        """
        first, end, _ = slice(first, end).indices(prod(self.shape[:-1]))
        return BLOCK_FORMATS[self.type].linear(self._octets(first, end))

    def floats(self) -> Floats:
        """Return the values in float32, exactly.

        Raises:
            FormatError: a scale is not finite, or the file has changed.
        """
        if self.is_quantized:
            return self.linear().dense().reshape(self.shape)
        octets = self._octets(0, prod(self.shape[:-1]))
        return widened(octets.view(TYPES[self.type]), self.type).reshape(self.shape)

    def part(self, index: int) -> "GgufTensor":
        """Return one of the tensors along the first axis."""
        shape = self.shape[1:]
        begin = self.begin + index * prod(shape[:-1]) * self._row_bytes
        return GgufTensor(self.file, self.version, begin, self.type, shape)

    def _octets(self, first: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes of some rows, of shape ``[rows, row_bytes]``.

        Raises:
            FormatError: the file has changed since its header was read, or cannot be read.
        """
        shape = (max(0, end - first), self._row_bytes)
        try:
            with open_regular(self.file) as file:
                file.seek(self.begin + first * self._row_bytes)
                octets = np.fromfile(file, np.uint8, prod(shape))
                is_same = version_of(file) == self.version
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror}") from error
        if not is_same or octets.size != prod(shape):
            raise FormatError(f"cannot be read: the file {self.file.name!r} changed meanwhile")
        return octets.reshape(shape)

    @property
    def _row_bytes(self) -> int:
        columns = self.shape[-1]
        if (size := PLAIN.get(self.type)) is not None:
            return columns * size
        found = BLOCK_FORMATS[self.type]
        return columns // found.num_weights * found.num_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file.

    Attributes:
        fields: its metadata by name, such as ``general.architecture``. Arrays of numbers are arrays
            of NumPy, and arrays of texts are lists.
        tensors: its tensors by name.
        types: the types of fields by name, such as ``UINT32`` or ``ARRAY``.
    """

    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    types: Mapping[str, str] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """Return a field; None if it is absent or no text."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else None


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, without waiting for a writer.

    Raises:
        FormatError: it is a pipe, a folder or a device.
        OSError: it cannot be opened.
    """

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    if not stat.S_ISREG(path.stat().st_mode):
        raise FormatError(f"its GGUF file {path.name!r} is a pipe, a folder or a device")
    return open(path, "rb", opener=opened)


def version_of(file: BinaryIO) -> Version:
    """Return the version of an open file."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_header(path: Path, *, has_texts: bool = True) -> GgufFile:
    """Return the metadata of a file, and where its tensors are; of pieces, those of all.

    Args:
        path: the file; the first of several pieces.
        has_texts: whether arrays of texts are among the fields; a vocabulary takes memory.

    Raises:
        FormatError: it is no GGUF file, contradicts itself, is too large in its header, has tensors
            of an unknown type, or lacks a piece.
        OSError: it cannot be read.
    """
    first = _read(path, has_texts=has_texts)
    num = _split(first, path, "count", 1)
    if num <= 1:
        return first
    names = pieces_of(path.name)
    if _split(first, path, "no", 0) or len(names) != num or names[0] != path.name:
        raise _error(
            path,
            f"is one of several parts: name the first one, such as NAME-00001-of-{num:05}.gguf",
        )
    return _merged(path, first, [path.with_name(name) for name in names])


def _merged(path: Path, first: GgufFile, files: list[Path]) -> GgufFile:
    """Return a file with the tensors of all its pieces.

    Raises:
        FormatError: a piece is absent or of another file, or two have the same tensor.
        OSError: a piece cannot be read.
    """
    tensors = dict(first.tensors)
    for number, file in enumerate(files[1:], 1):
        if not file.exists():
            raise _error(path, f"is in {len(files)} parts, and {file.name!r} is not beside it")
        part = _read(file, has_texts=False)
        stated = (_split(part, file, "no", 0), _split(part, file, "count", 1))
        if stated != (number, len(files)):
            raise _error(file, f"should be part {number + 1} of {len(files)}, and says otherwise")
        if twice := sorted(tensors.keys() & part.tensors.keys()):
            raise _error(file, f"has a tensor {twice[0]!r}, which an earlier part has, too")
        tensors |= part.tensors
    if (num := _split(first, path, "tensors.count", len(tensors))) != len(tensors):
        raise _error(path, f"has {len(tensors)} tensors in its parts, and states {num}")
    return GgufFile(first.fields, MappingProxyType(tensors), first.types)


def _split(file: GgufFile, path: Path, name: str, default: int) -> int:
    """Return a number that a piece states.

    Raises:
        FormatError: it is no such number.
    """
    value = file.fields.get(f"split.{name}", default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _error(path, f"needs a whole number in 'split.{name}'")
    return value


def _error(path: Path, problem: str) -> FormatError:
    return FormatError(f"its GGUF file {path.name!r} {problem}")


def _read(path: Path, *, has_texts: bool) -> GgufFile:
    """Return the metadata and the tensors of one file.

    Raises:
        FormatError: it is no GGUF file, contradicts itself, is too large in its header, or has
            tensors of an unknown type.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        reader = _Reader(file, path, has_texts=has_texts)
        if reader.take(len(MAGIC)) != MAGIC:
            raise reader.error("is no GGUF file")
        version = reader.number("<I")
        if version not in VERSIONS:
            what = "big-endian" if not version & 0xFFFF else f"of version {version}"
            raise reader.error(f"is a GGUF file that is {what}, which is not supported")
        num_tensors, num_fields = reader.count(), reader.count()
        stated = _unique(reader, "field", num_fields, reader.field)
        fields = {name: value for name, (_, value) in stated.items() if value is not None}
        types = {name: FIELD_TYPES[kind] for name, (kind, _) in stated.items()}
        listed = _unique(reader, "tensor", num_tensors, reader.tensor)
        alignment = _alignment(reader, fields)
        begin = -(-file.tell() // alignment) * alignment
        tensors = _placed(reader, listed, begin, alignment)
    return GgufFile(MappingProxyType(fields), MappingProxyType(tensors), MappingProxyType(types))


class _Reader:
    """Reads numbers and texts from the beginning of a file, up to a limit."""

    def __init__(self, file: BinaryIO, path: Path, *, has_texts: bool) -> None:
        self.path = path
        self.version = version_of(file)
        _, self.num_bytes, _ = self.version
        self._file = file
        self._has_texts = has_texts
        self._left = min(MAX_HEADER_BYTES, self.num_bytes)
        self._strings_left = MAX_STRINGS

    def error(self, problem: str) -> FormatError:
        return _error(self.path, problem)

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self._left:
            is_cut = self.num_bytes <= MAX_HEADER_BYTES
            what = "ends within its header" if is_cut else "has too large a header"
            raise self.error(what)
        self._left -= num_bytes
        octets = self._file.read(num_bytes)
        if len(octets) != num_bytes:
            raise self.error("was shortened while its header was read")
        return octets

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def count(self) -> int:
        if (num := int(self.number("<Q"))) > MAX_ENTRIES:
            raise self.error(f"states {num} fields or tensors, and {MAX_ENTRIES} are supported")
        return num

    def text(self) -> str:
        octets = self.take(self.number("<Q"))
        return octets.decode("utf-8", "surrogateescape")

    def name(self) -> str:
        if (length := self.number("<Q")) > MAX_NAME_BYTES:
            raise self.error("has a name that is too long")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.error("has a name that is no text") from error

    def field(self) -> tuple[int, Any]:
        """Return the type of a field and its value, which is None if it is skipped."""
        kind = self.number("<I")
        return kind, self.value(kind)

    def value(self, kind: int) -> Any:
        """Return the value of a field; None if it is skipped."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array(self.number("<I"), self.number("<Q"))
        if (dtype := NUMBERS.get(kind)) is None:
            raise self.error(f"has a field of the unknown type {kind}")
        number = np.frombuffer(self.take(np.dtype(dtype).itemsize), dtype)[0].item()
        return bool(number) if kind == BOOL else number

    def _array(self, kind: int, num: int) -> list[str] | NDArray[Any] | None:
        if kind == STRING:
            self._strings_left -= num
            if self._strings_left < 0:
                raise self.error(f"has more than {MAX_STRINGS} texts in its fields")
            if self._has_texts:
                return [self.text() for _ in range(num)]
            for _ in range(num):
                self.take(self.number("<Q"))
            return None
        if kind == ARRAY:
            raise self.error("has a field that is an array of arrays, which is not supported")
        if (dtype := NUMBERS.get(kind)) is None:
            raise self.error(f"has a field of the unknown type {kind}")
        return np.frombuffer(self.take(num * np.dtype(dtype).itemsize), dtype)

    def tensor(self) -> tuple[str, tuple[int, ...], int]:
        """Return the type of a tensor, the sizes of its axes, and its offset."""
        num_axes = self.number("<I")
        if not 0 < num_axes <= MAX_AXES:
            raise self.error(f"has a tensor of {num_axes} axes")
        shape = tuple(self.number("<Q") for _ in range(num_axes))[::-1]
        kind, offset = self.number("<I"), self.number("<Q")
        name = TYPE_NAMES.get(kind, str(kind))
        if name not in BLOCK_FORMATS and name not in PLAIN:
            raise self.error(f"has tensors of the type {name}, which is not supported")
        width = BLOCK_FORMATS[name].num_weights if name in BLOCK_FORMATS else 1
        if not all(shape) or shape[-1] % width:
            raise self.error(f"has a tensor of type {name} and shape {list(shape)}")
        return name, shape, offset


def _unique(reader: _Reader, what: str, num: int, read: Callable[[], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(num):
        if (name := reader.name()) in found:
            raise reader.error(f"has two of the {what} {name!r}")
        found[name] = read()
    return found


def _alignment(reader: _Reader, fields: Mapping[str, Any]) -> int:
    alignment = fields.get("general.alignment", 32)
    is_number = isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT
    if not is_number or alignment & (alignment - 1):
        raise reader.error("has a 'general.alignment' that is no power of two from 8 to 65536")
    return int(alignment)


def _placed(
    reader: _Reader, listed: Mapping[str, Any], begin: int, alignment: int
) -> dict[str, GgufTensor]:
    """Return the tensors with their places: one behind the other, up to the end of the file.

    A gap would show that the type of a tensor is another one.
    """
    tensors = {
        name: GgufTensor(reader.path, reader.version, begin + offset, kind, shape)
        for name, (kind, shape, offset) in listed.items()
    }
    end = begin
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if (tensor.begin - begin) % alignment:
            raise reader.error(f"has a tensor {name!r} that is not aligned")
        if tensor.begin < end:
            raise reader.error(f"has a tensor {name!r} that overlaps another one")
        if tensor.begin - end >= alignment:
            raise reader.error(f"has a gap before its tensor {name!r}")
        end = tensor.begin + tensor.num_bytes
        if end > reader.num_bytes:
            raise reader.error(f"ends within its tensor {name!r}")
    if reader.num_bytes - end >= alignment and tensors:
        raise reader.error("has bytes behind its last tensor")
    return tensors
