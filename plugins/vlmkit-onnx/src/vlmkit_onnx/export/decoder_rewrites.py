"""Folds rotation, packed projection and reshapes around GroupQueryAttention into the operator.

The operator can rotate queries and keys and split a packed projection in one pass over memory. A
traced graph does both around it. Separate quantized projections are packed. Every rewrite computes
exactly what it replaces, and is skipped if the graph does not fit it. transformers' own fusions run
before.
"""

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnx_ir import Node, Value, convenience
from onnx_ir.passes import common
from onnx_ir.tape import Tape

from vlmkit_onnx.export.fusing import fuse

# Indices of GroupQueryAttention's inputs.
COS, SIN, POSITIONS = 7, 8, 9


def rewrite_decoder(model: onnx_ir.Model) -> None:
    """Rewrite a traced decoder in place."""
    rewriter = _Rewriter(model.graph)
    for node in [node for node in model.graph if node.op_type == "GroupQueryAttention"]:
        rewriter.rewrite(node)
    common.RemoveUnusedNodesPass()(model)
    common.TopologicalSortPass()(model)
    common.ClearMetadataAndDocStringPass()(model)  # drops source paths of this machine


class _Rotation:
    """A rotation that queries and keys share, and their values before it."""

    def __init__(self, of_query: Node, query: Value, key: Value) -> None:
        self.positions, self.cos, self.sin = of_query.inputs[1:4]
        self.interleaved = of_query.attributes.get_int("interleaved", 0)
        self.query = query
        self.key = key


class _Rewriter:
    """Rewrites one graph's attention nodes; builds each table of cosines once."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self.graph = graph
        self.total = next(v for v in graph.inputs if v.name == "total_sequence_length")
        self.tables: dict[tuple[str | None, str | None], tuple[Value, Value]] = {}
        self.num_constants = 0

    def rewrite(self, node: Node) -> None:
        """Fold the surrounding nodes that fit into one attention node."""
        query, key, value = (_unshaped(v) for v in node.inputs[:3])
        rotation = _rotation(query, key)
        if rotation is not None:
            query, key = rotation.query, rotation.key
        packed = self._packed(node, query, key, value) or self._fused(node, query, key, value)
        if packed is not None:
            for index, new in enumerate((packed, None, None)):
                node.replace_input_with(index, new)
        else:
            for index, states in enumerate((query, key, value)):
                self._replace_flat(node, index, states, must=rotation is not None)
        if rotation is not None:
            self._fold_rotation(node, rotation)
        _drop_reshapes_after(node.outputs[0])

    def _packed(
        self, node: Node, query: Value | None, key: Value | None, value: Value | None
    ) -> Value | None:
        """Return the projection whose slices are query, key and value; None if there is none."""
        slices = [_slice_of(states) for states in (query, key, value)]
        split = slices[0][0]
        if split is None or any(s is not split for s, _, _ in slices):
            return None
        if len(split.outputs) != len(slices):  # a feed-forward layer beside attention reads it, too
            return None
        if [index for _, index, _ in slices] != [0, 1, 2] or _rank(split.inputs[0]) != 3:
            return None
        packed = split.inputs[0]
        biases = [bias for _, _, bias in slices if bias is not None]
        if not biases:
            return packed
        if len(biases) != 3 or packed is None:
            return None
        whole = np.concatenate([_array(bias) for bias in biases])
        tape = Tape()
        shifted = tape.op("Add", [packed, self._constant(whole)])
        shifted.shape, shifted.type = packed.shape, packed.type
        self.graph.insert_before(node, tape.nodes)
        return shifted

    def _fused(self, node: Node, *states: Value | None) -> Value | None:
        """Return one projection that replaces three; None if they cannot be fused."""
        layer = fuse(states) if all(_rank(value) == 3 for value in states) else None
        if layer is None:
            return None
        for value in layer.inputs[1:]:
            if value is not None:
                self.graph.register_initializer(value)
        self.graph.insert_before(node, layer)
        return layer.outputs[0]

    def _replace_flat(self, node: Node, index: int, states: Value | None, *, must: bool) -> None:
        """Use states ``[rows, seq, width]`` as an input; flatten states by head if ``must``."""
        if _rank(states) == 3:
            node.replace_input_with(index, states)
        elif must:
            tape = Tape()
            flat = tape.op("Reshape", [states, self._constant(np.array([0, 0, -1], np.int64))])
            self.graph.insert_before(node, tape.nodes)
            node.replace_input_with(index, flat)

    def _fold_rotation(self, node: Node, rotation: _Rotation) -> None:
        cos, sin = self._long_enough(node, rotation.cos, rotation.sin)
        if len(node.inputs) <= POSITIONS:
            node.resize_inputs(POSITIONS + 1)
        for index, value in ((COS, cos), (SIN, sin), (POSITIONS, rotation.positions)):
            node.replace_input_with(index, value)
        node.attributes["do_rotary"] = onnx_ir.AttrInt64("do_rotary", 1)
        node.attributes["rotary_interleaved"] = onnx_ir.AttrInt64(
            "rotary_interleaved", rotation.interleaved
        )

    def _long_enough(self, node: Node, cos: Value | None, sin: Value | None) -> tuple[Value, Value]:
        """Return tables with as many rows as the longest sequence, which the operator requires.

        A traced decoder computes only the rows of its new tokens, and positions that index them.
        """
        assert cos is not None and sin is not None  # noqa: S101, PT018 - inputs of RotaryEmbedding
        key = (cos.name, sin.name)
        if key in self.tables:
            return self.tables[key]
        tape = Tape()
        rows = tape.op("Shape", [cos], {"start": 0, "end": 1})
        total = tape.op("Cast", [self.total], {"to": onnx_ir.DataType.INT64.value})
        wanted = tape.op("Reshape", [total, self._constant(np.array([-1], np.int64))])
        missing = tape.op(
            "Max", [tape.op("Sub", [wanted, rows]), self._constant(np.zeros(1, np.int64))]
        )
        width = tape.op("Shape", [cos], {"start": 1})
        zero = tape.op("CastLike", [self._constant(np.zeros((), np.float32)), cos])
        padding = tape.op("Expand", [zero, tape.op("Concat", [missing, width], {"axis": 0})])
        made = tuple(tape.op("Concat", [table, padding], {"axis": 0}) for table in (cos, sin))
        self.graph.insert_before(node, tape.nodes)
        self.tables[key] = (made[0], made[1])
        return self.tables[key]

    def _constant(self, array: NDArray[np.generic]) -> Value:
        name = f"tidy_{self.num_constants}"
        self.num_constants += 1
        value = onnx_ir.val(name, const_value=onnx_ir.tensor(array, name=name))
        self.graph.register_initializer(value)
        return value


def _rotation(query: Value | None, key: Value | None) -> _Rotation | None:
    """Return the rotation of whole heads that query and key share, if the operator supports it."""
    of_query, of_key = _producer(query, "RotaryEmbedding"), _producer(key, "RotaryEmbedding")
    if of_query is None or of_key is None:
        return None
    if any(a is not b for a, b in zip(of_query.inputs[1:4], of_key.inputs[1:4], strict=True)):
        return None
    if "rotary_embedding_dim" in of_query.attributes:  # part of each head only
        return None
    before, before_key = _unshaped(of_query.inputs[0]), _unshaped(of_key.inputs[0])
    half = _last(of_query.inputs[2])
    if before is None or before_key is None or not half or half % 8:
        return None
    return _Rotation(of_query, before, before_key) if _rank(before) in (3, 4) else None


def _slice_of(states: Value | None) -> tuple[Node | None, int | None, Value | None]:
    """Return the Split that states come from, their index in it, and a bias added afterwards."""
    bias = None
    if (add := _producer(states, "Add")) is not None:
        constants = [v for v in add.inputs if v is not None and v.const_value is not None]
        others = [v for v in add.inputs if v is not None and v.const_value is None]
        if len(constants) == 1 and len(others) == 1:
            bias, states = constants[0], others[0]
    split = _producer(states, "Split")
    return split, (states.index() if split is not None and states is not None else None), bias


def _drop_reshapes_after(out: Value) -> None:
    """Remove reshapes of the output that end in its original shape."""
    todo = [use.node for use in out.uses() if use.node.op_type == "Reshape"]
    while todo:
        value = todo.pop().outputs[0]
        if _rank(value) == 3 and _last(value) == _last(out):
            convenience.replace_all_uses_with(value, out)
        else:
            todo += [use.node for use in value.uses() if use.node.op_type == "Reshape"]


def _unshaped(value: Value | None) -> Value | None:
    while (node := _producer(value, "Reshape")) is not None:
        value = node.inputs[0]
    return value


def _producer(value: Value | None, op_type: str) -> Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def _array(value: Value) -> NDArray[np.generic]:
    assert value.const_value is not None  # noqa: S101 - callers pass constants only
    return value.const_value.numpy()


def _rank(value: Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _last(value: Value | None) -> int | None:
    size = None if value is None or value.shape is None else value.shape[-1]
    return size if isinstance(size, int) else None
