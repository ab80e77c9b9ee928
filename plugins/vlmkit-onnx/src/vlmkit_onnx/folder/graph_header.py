"""An ONNX file's table of contents: inputs, outputs, operators, and which other files it names.

Reads no weights and needs no ``onnx`` package: weights are skipped by their lengths. What the file
says is not judged here; field numbers are those of onnx.proto.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder.protobuf_wire import Field, MalformedMessage, WireReader

MAX_FIELDS = 2_000_000  # a graph of 40 layers, exploded to single operators, has about a fifth
MAX_NOTES = 200_000  # operators, weights and values that are remembered
MAX_DEPTH = 16  # of graphs within the nodes of graphs
MAX_NAME_BYTES = 4096
MAX_DIMENSIONS = 32
NUM_LINKS = 5  # inputs and outputs of an operator that can matter here
ATTRIBUTES = frozenset({"bits", "block_size", "do_rotary", "local_window_size"})
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
        element_type: in numpy's words, such as ``float32``; empty for what is not a tensor.
        shape: a number or a name for each axis, an empty name where neither is stated; None where
            the rank is not stated.
    """

    element_type: str
    shape: tuple[int | str, ...] | None


class ExternalTensor(NamedTuple):
    """A tensor whose numbers lie in another file.

    Attributes:
        name: of the tensor.
        location: of the file, relative to the graph's folder.
        offset: of its first byte.
        num_bytes: how many it takes.
    """

    name: str
    location: str
    offset: int
    num_bytes: int


class CachedAttention(NamedTuple):
    """An attention operator that appends to a cache: GroupQueryAttention.

    Attributes:
        past_key: name of the value that is read, as are the next three.
        past_value: the same for values.
        present_key: of the value that is written.
        present_value: the same for values.
        rotates: whether it also turns queries and keys by their positions.
        window: how many tokens a token sees, itself included; 0 for all.
    """

    past_key: str
    past_value: str
    present_key: str
    present_value: str
    rotates: bool
    window: int


class PackedWeights(NamedTuple):
    """How the weights of a MatMulNBits operator are stored."""

    num_bits: int
    block_size: int


@dataclass(frozen=True, slots=True)
class GraphHeader:
    """What a file says of itself.

    Attributes:
        inputs: what must be given, by name; a value that the file brings along is none.
        outputs: what comes out, by name.
        op_types: operators in use, at any depth.
        external: tensors that lie in other files.
        attention: the operators that keep a cache.
        packed: how packed weights are stored; empty where none are.
    """

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    op_types: frozenset[str]
    external: tuple[ExternalTensor, ...]
    attention: tuple[CachedAttention, ...]
    packed: frozenset[PackedWeights]


def read_header(file: Path) -> GraphHeader:
    """Return the table of contents of an ONNX file.

    Raises:
        CheckpointError: the file is absent, truncated, or not an ONNX model.
    """
    if not file.is_file():
        raise CheckpointError(f"{file.name!r} is missing", hint="fetch or export the model again")
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Walker(WireReader(data, MAX_FIELDS)).model(len(data))
    except (OSError, ValueError) as error:  # mmap's word for an empty file is a ValueError
        raise CheckpointError(
            f"{file.name!r} is not a whole ONNX file", hint="fetch or export the model again"
        ) from error


@dataclass(slots=True)
class _Graph:
    inputs: dict[str, TensorInfo] = field(default_factory=dict)
    outputs: dict[str, TensorInfo] = field(default_factory=dict)
    initializers: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Node:
    op_type: str = ""
    inputs: list[Field] = field(default_factory=list)
    outputs: list[Field] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)


class _Walker:
    """Goes through the messages of one file and notes what it passes; one method a message."""

    def __init__(self, wire: WireReader) -> None:
        self._wire = wire
        self._num_notes = 0
        self._op_types: set[str] = set()
        self._external: list[ExternalTensor] = []
        self._attention: list[CachedAttention] = []
        self._packed: set[PackedWeights] = set()

    def model(self, num_bytes: int) -> GraphHeader:
        graph, has_version = None, False
        for item in self._fields((0, num_bytes), singular=(7,)):
            if item.number == 1:
                has_version = self._wire.integer(item) > 0
            elif item.number == 7:
                graph = self._graph(item, 0)
            elif item.number == 20:
                self._training(item)
            elif item.number == 25:
                self._function(item)
        if graph is None or not has_version or not graph.outputs:
            raise MalformedMessage("no ONNX model")
        return GraphHeader(
            inputs={n: i for n, i in graph.inputs.items() if n not in graph.initializers},
            outputs=graph.outputs,
            op_types=frozenset(self._op_types),
            external=tuple(self._external),
            attention=tuple(self._attention),
            packed=frozenset(self._packed),
        )

    def _training(self, message: Field) -> None:
        for item in self._fields(self._wire.span(message)):
            if item.number in (1, 2):
                self._graph(item, 1)

    def _function(self, message: Field) -> None:
        for item in self._fields(self._wire.span(message)):
            if item.number == 7:
                self._node(item, 1)
            elif item.number == 11:
                self._attribute(item, 1)

    def _graph(self, message: Field, depth: int) -> _Graph:
        if depth > MAX_DEPTH:
            raise MalformedMessage("graphs are nested too deeply")
        graph = _Graph()
        for item in self._fields(self._wire.span(message)):
            if item.number == 1:
                self._node(item, depth)
            elif item.number == 5:
                graph.initializers.add(self._tensor(item))
                self._bound_notes()
            elif item.number == 15:
                self._sparse(item)
            elif item.number in (11, 12):
                name, info = self._value(item)
                (graph.inputs if item.number == 11 else graph.outputs)[name] = info
                self._bound_notes()
        return graph

    def _node(self, message: Field, depth: int) -> None:
        node = _Node()
        for item in self._fields(self._wire.span(message)):
            if item.number in (1, 2):
                links = node.inputs if item.number == 1 else node.outputs
                links += [item] if len(links) < NUM_LINKS else []
            elif item.number == 4:
                node.op_type = self._text(item)
            elif item.number == 5:
                name, number = self._attribute(item, depth)
                node.numbers |= {name: number} if name in ATTRIBUTES else {}
        if node.op_type not in self._op_types:
            self._op_types.add(node.op_type)
            self._bound_notes()
        self._note(node)

    def _note(self, node: _Node) -> None:
        """Keep what says how the graph caches and how its weights are packed."""
        if node.op_type == "MatMulNBits":
            self._bound_notes()
            bits, block = node.numbers.get("bits", 4), node.numbers.get("block_size", 0)
            self._packed.add(PackedWeights(bits, block))
        is_cached = len(node.inputs) > 4 and len(node.outputs) > 2
        if node.op_type == "GroupQueryAttention" and is_cached:
            self._bound_notes()
            past_key, past_value = (self._text(item) for item in node.inputs[3:5])
            key, value = (self._text(item) for item in node.outputs[1:3])
            rotates = node.numbers.get("do_rotary", 0) == 1
            window = max(0, node.numbers.get("local_window_size", 0))
            self._attention.append(
                CachedAttention(past_key, past_value, key, value, rotates, window)
            )

    def _attribute(self, message: Field, depth: int) -> tuple[str, int]:
        """Return an attribute's name and its value where that is a number, else 0."""
        name, number = "", 0
        for item in self._fields(self._wire.span(message), singular=(5, 6, 22)):
            if item.number == 1:
                name = self._text(item)
            elif item.number == 3:
                number = self._wire.integer(item)
            elif item.number in (5, 10):
                self._tensor(item)
            elif item.number in (6, 11):
                self._graph(item, depth + 1)
            elif item.number in (22, 23):
                self._sparse(item)
        return name, number

    def _sparse(self, message: Field) -> None:
        for item in self._fields(self._wire.span(message), singular=(1, 2)):
            if item.number in (1, 2):
                self._tensor(item)

    def _tensor(self, message: Field) -> str:
        """Note where a tensor lies; return its name."""
        name, kind, shape = "", 0, list[int]()
        stated: dict[str, str] = {}
        for item in self._fields(self._wire.span(message)):
            if item.number == 1:
                shape += self._wire.integers(item, MAX_DIMENSIONS)
                if len(shape) > MAX_DIMENSIONS:
                    raise MalformedMessage("a tensor has too many axes")
            elif item.number == 2:
                kind = self._wire.integer(item)
            elif item.number == 8:
                name = self._text(item)
            elif item.number == 13:
                key, value = self._entry(item)
                if key in stated:
                    raise MalformedMessage("external data are stated twice")
                stated[key] = value
        if stated:
            self._bound_notes()
            self._external.append(_external(name, stated, _num_bytes(kind, shape)))
        return name

    def _entry(self, message: Field) -> tuple[str, str]:
        texts = {1: "", 2: ""}
        for item in self._fields(self._wire.span(message)):
            if item.number in texts:
                texts[item.number] = self._text(item)
        return texts[1], texts[2]

    def _value(self, message: Field) -> tuple[str, TensorInfo]:
        name, info = "", TensorInfo("", None)
        for item in self._fields(self._wire.span(message), singular=(2,)):
            if item.number == 1:
                name = self._text(item)
            elif item.number == 2:
                info = self._type(item)
        return name, info

    def _type(self, message: Field) -> TensorInfo:
        info = TensorInfo("", None)
        for item in self._fields(self._wire.span(message), singular=(1,)):
            if item.number == 1:
                info = self._tensor_type(item)
        return info

    def _tensor_type(self, message: Field) -> TensorInfo:
        element_type, shape = "", None
        for item in self._fields(self._wire.span(message), singular=(2,)):
            if item.number == 1:
                element_type = _element_type(self._wire.integer(item))[0]
            elif item.number == 2:
                shape = tuple(self._axis(axis) for axis in self._fields(self._wire.span(item)))
        return TensorInfo(element_type, shape)

    def _axis(self, message: Field) -> int | str:
        axis: int | str = ""
        if message.number != 1:
            raise MalformedMessage("a shape holds something else than axes")
        for item in self._fields(self._wire.span(message)):
            if item.number == 1:
                axis = self._wire.integer(item)
            elif item.number == 2:
                axis = self._text(item)
        return axis

    def _fields(self, span: tuple[int, int], singular: tuple[int, ...] = ()) -> Iterator[Field]:
        """Yield the fields of a message; a reader would merge two messages that may be there once.

        Raises:
            MalformedMessage: there are two.
        """
        seen: set[int] = set()
        for item in self._wire.fields(*span):
            if item.number in singular:
                if item.number in seen:
                    raise MalformedMessage("a part is there twice")
                seen.add(item.number)
            yield item

    def _bound_notes(self) -> None:
        self._num_notes += 1
        if self._num_notes > MAX_NOTES:
            raise MalformedMessage("there is too much in it")

    def _text(self, item: Field) -> str:
        return self._wire.text(item, MAX_NAME_BYTES)


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
    """Put together where a tensor lies; ``stated`` is in the format's own words."""
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
