"""Fusing quantized layers: the conditions, and equal outputs bit for bit."""

from typing import Any

import numpy as np
import pytest

from vlmkit_onnx.sessions.runtime import onnxruntime

pytest.importorskip("onnx_ir")
pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import onnx_ir  # noqa: E402
from onnx_ir import Node, Value  # noqa: E402
from onnx_ir.tape import Tape  # noqa: E402

from vlmkit_onnx.export import token_linear  # noqa: E402
from vlmkit_onnx.export.fusing import fuse  # noqa: E402

WIDTH, BLOCK, SIZES = 64, 32, (24, 8, 8)


class Layers:
    """Three layers of one kind; layers of the same input can be fused."""

    def __init__(self, kind: str, *, biases: tuple[bool, ...] = (True, True, True)) -> None:
        self.random = np.random.default_rng(0)
        self.inputs = self._value("x", np.float32, None, [None, 3, WIDTH])
        self.weights: list[Value] = []
        make = self._of_blocks if kind == "MatMulNBits" else self._of_tokens
        sizes = zip(SIZES, biases, strict=True)
        self.nodes = [make(i, size, has_bias=has) for i, (size, has) in enumerate(sizes)]

    @property
    def outputs(self) -> list[Value]:
        return [node.outputs[0] for node in self.nodes]

    def read(self, values: list[Value]) -> list[Node]:
        """Add one reader for each value."""
        tape = Tape()
        for value in values:
            made = tape.op("Identity", [value])
            made.type, made.shape = self.inputs.type, onnx_ir.Shape([None, 3, None])
        return list(tape.nodes)

    def _of_blocks(self, index: int, size: int, *, has_bias: bool) -> Node:
        num_blocks = WIDTH // BLOCK
        codes = self.random.integers(0, 256, (size, num_blocks, BLOCK // 2), np.uint8)
        zeros = self.random.integers(0, 256, (size, num_blocks // 2), np.uint8)
        scale = self.random.random((size, num_blocks), np.float32)
        values: list[Value | None] = [
            self._weight(f"{kind}{index}", array)
            for kind, array in (("codes", codes), ("scale", scale), ("zeros", zeros))
        ]
        if has_bias:
            values += [None, self._weight(f"bias{index}", self.random.random(size, np.float32))]
        attributes = {
            "K": WIDTH, "N": size, "bits": 4, "block_size": BLOCK, "accuracy_level": 4,
        }  # fmt: skip
        tape = Tape()
        out = tape.op("MatMulNBits", [self.inputs, *values], attributes, domain="com.microsoft")
        return self._finished(out, size)

    def _of_tokens(self, index: int, size: int, *, has_bias: bool) -> Node:
        codes = self.random.integers(-127, 128, (WIDTH, size), np.int8)
        values = [
            self._weight(f"codes{index}", codes),
            self._weight(f"scale{index}", self.random.random(size, np.float32)),
        ]
        if has_bias:
            values.append(self._weight(f"bias{index}", self.random.random(size, np.float32)))
        out = Tape().op(token_linear.OPERATOR, [self.inputs, *values], domain=token_linear.DOMAIN)
        return self._finished(out, size)

    def _finished(self, out: Value, size: int) -> Node:
        out.type, out.shape = self.inputs.type, onnx_ir.Shape([None, 3, size])
        out.name = f"out{len(self.weights)}"
        node = out.producer()
        assert node is not None
        return node

    def _weight(self, name: str, array: Any) -> Value:
        made = self._value(name, array.dtype, onnx_ir.tensor(array, name=name), array.shape)
        self.weights.append(made)
        return made

    def _value(self, name: str, dtype: Any, tensor: Any, shape: Any) -> Value:
        kind = onnx_ir.TensorType(onnx_ir.DataType.from_numpy(np.dtype(dtype)))
        return Value(name=name, type=kind, shape=onnx_ir.Shape(shape), const_value=tensor)


def _run(layers: Layers, nodes: list[Node]) -> list[Any]:
    readers = layers.read([node.outputs[0] for node in nodes])
    outputs = [reader.outputs[0] for reader in readers]
    opsets = {"": 21, "com.microsoft": 1}
    graph = onnx_ir.Graph([layers.inputs], outputs, nodes=[*nodes, *readers], opset_imports=opsets)
    for value in dict.fromkeys(v for node in nodes for v in node.inputs if v and v.const_value):
        graph.register_initializer(value)
    model = onnx_ir.Model(graph, ir_version=10)
    token_linear.expand_layers(model)
    session = onnxruntime.InferenceSession(
        onnx_ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    inputs = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32)
    return list(session.run(None, {"x": inputs}))


@pytest.mark.parametrize("kind", ["MatMulNBits", token_linear.OPERATOR])
@pytest.mark.parametrize("has_biases", [True, False])
def test_fused_layers_give_the_same_outputs_bit_for_bit(kind: str, has_biases: bool) -> None:
    apart = Layers(kind, biases=(has_biases,) * 3)
    together = Layers(kind, biases=(has_biases,) * 3)
    together.read(together.outputs)
    joined = fuse(together.outputs)
    assert joined is not None
    (whole,) = _run(together, [joined])
    assert np.array_equal(whole, np.concatenate(_run(apart, apart.nodes), axis=-1))


def test_layers_with_different_inputs_stay_separate() -> None:
    one, other = Layers("MatMulNBits"), Layers("MatMulNBits")
    outputs = [*one.outputs[:2], other.outputs[2]]
    one.read(outputs)
    assert fuse(outputs) is None


def test_layers_of_which_only_some_have_a_bias_stay_separate() -> None:
    layers = Layers("MatMulNBits", biases=(True, True, False))
    layers.read(layers.outputs)
    assert fuse(layers.outputs) is None


def test_a_layer_with_another_reader_is_not_fused() -> None:
    layers = Layers("MatMulNBits")
    layers.read([*layers.outputs, layers.outputs[0]])
    assert fuse(layers.outputs) is None


def test_layers_that_are_not_quantized_are_not_fused() -> None:
    layers = Layers("MatMulNBits")
    layers.read([*layers.outputs, layers.inputs])
    assert fuse([*layers.outputs[:2], layers.inputs]) is None
    assert fuse([*layers.outputs[:2], None]) is None
