"""Reads the declarations of an ONNX file: inputs, outputs, operators, and names of other files.

Reads no weights and needs no ``onnx`` package: weights are skipped by their lengths. Validates the
format only. Field numbers are those of onnx.proto.
"""

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder.graph_messages import ExternalTensor, MessageReader, TensorInfo
from vlmkit_onnx.folder.protobuf_wire import Field, MalformedMessage, WireReader

MAX_FIELDS = 2_000_000  # a graph of 40 layers in single operators has about a fifth
MAX_DEPTH = 16  # of nested graphs
NUM_LINKS = 5  # inputs and outputs of an operator that are read
ATTRIBUTES = frozenset({"bits", "block_size", "do_rotary", "local_window_size"})


class CachedAttention(NamedTuple):
    """An attention operator that appends to a cache: GroupQueryAttention.

    Attributes:
        past_key: name of the input with keys.
        past_value: name of the input with values.
        present_key: name of the output with keys.
        present_value: name of the output with values.
        rotates: whether it also rotates queries and keys by their positions.
        window: tokens that a token sees, itself included; 0 means all.
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
    """The declarations of an ONNX file.

    Attributes:
        inputs: required inputs by name, without values that the file contains.
        outputs: outputs by name.
        op_types: operators in use, at any depth.
        external: tensors in other files.
        attention: the operators that use a cache.
        packed: how packed weights are stored; empty if there are none.
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
            return _GraphWalker(WireReader(data, MAX_FIELDS)).model(len(data))
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


class _GraphWalker:
    """Walks the graph of one file and records its declarations; one method for each message."""

    def __init__(self, wire: WireReader) -> None:
        self._wire = wire
        self._reader = MessageReader(wire)
        self._op_types: set[str] = set()
        self._attention: list[CachedAttention] = []
        self._packed: set[PackedWeights] = set()

    def model(self, num_bytes: int) -> GraphHeader:
        graph, has_version = None, False
        for item in self._reader.fields((0, num_bytes), singular=(7,)):
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
            external=tuple(self._reader.external),
            attention=tuple(self._attention),
            packed=frozenset(self._packed),
        )

    def _training(self, message: Field) -> None:
        for item in self._reader.fields(self._wire.span(message)):
            if item.number in (1, 2):
                self._graph(item, 1)

    def _function(self, message: Field) -> None:
        for item in self._reader.fields(self._wire.span(message)):
            if item.number == 7:
                self._node(item, 1)
            elif item.number == 11:
                self._attribute(item, 1)

    def _graph(self, message: Field, depth: int) -> _Graph:
        if depth > MAX_DEPTH:
            raise MalformedMessage("graphs are nested too deeply")
        graph = _Graph()
        for item in self._reader.fields(self._wire.span(message)):
            if item.number == 1:
                self._node(item, depth)
            elif item.number == 5:
                graph.initializers.add(self._reader.tensor(item))
                self._reader.count_record()
            elif item.number == 15:
                self._reader.sparse(item)
            elif item.number in (11, 12):
                name, info = self._reader.value(item)
                (graph.inputs if item.number == 11 else graph.outputs)[name] = info
                self._reader.count_record()
        return graph

    def _node(self, message: Field, depth: int) -> None:
        node = _Node()
        for item in self._reader.fields(self._wire.span(message)):
            if item.number in (1, 2):
                links = node.inputs if item.number == 1 else node.outputs
                links += [item] if len(links) < NUM_LINKS else []
            elif item.number == 4:
                node.op_type = self._reader.text(item)
            elif item.number == 5:
                name, number = self._attribute(item, depth)
                node.numbers |= {name: number} if name in ATTRIBUTES else {}
        if node.op_type not in self._op_types:
            self._op_types.add(node.op_type)
            self._reader.count_record()
        self._record(node)

    def _record(self, node: _Node) -> None:
        """Record how the graph uses a cache and how its weights are packed."""
        if node.op_type == "MatMulNBits":
            self._reader.count_record()
            bits, block = node.numbers.get("bits", 4), node.numbers.get("block_size", 0)
            self._packed.add(PackedWeights(bits, block))
        is_cached = len(node.inputs) > 4 and len(node.outputs) > 2
        if node.op_type == "GroupQueryAttention" and is_cached:
            self._reader.count_record()
            past_key, past_value = (self._reader.text(item) for item in node.inputs[3:5])
            key, value = (self._reader.text(item) for item in node.outputs[1:3])
            rotates = node.numbers.get("do_rotary", 0) == 1
            window = max(0, node.numbers.get("local_window_size", 0))
            self._attention.append(
                CachedAttention(past_key, past_value, key, value, rotates, window)
            )

    def _attribute(self, message: Field, depth: int) -> tuple[str, int]:
        """Return an attribute's name and its value if that is a number, else 0."""
        name, number = "", 0
        for item in self._reader.fields(self._wire.span(message), singular=(5, 6, 22)):
            if item.number == 1:
                name = self._reader.text(item)
            elif item.number == 3:
                number = self._wire.integer(item)
            elif item.number in (5, 10):
                self._reader.tensor(item)
            elif item.number in (6, 11):
                self._graph(item, depth + 1)
            elif item.number in (22, 23):
                self._reader.sparse(item)
        return name, number
