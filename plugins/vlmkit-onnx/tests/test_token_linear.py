"""Expanded 8-bit layers: values, rows of zeros, and gated layers with fewer operators."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from vlmkit_onnx.sessions import products
from vlmkit_onnx.sessions.runtime import onnxruntime

pytest.importorskip("onnx_ir")
pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import onnx_ir  # noqa: E402
from onnx_ir import Value  # noqa: E402
from onnx_ir.tape import Tape  # noqa: E402

from vlmkit_onnx.export.token_linear import DOMAIN, OPERATOR, expand_layers  # noqa: E402

WIDTH, INNER = 64, 96
FLOATS = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)


class GatedLayers:
    """``down(sigmoid(gate(x)) * up(x))``, as a graph and as sums of 64 bits."""

    def __init__(self, *, has_bias: bool = False, shows_product: bool = False) -> None:
        self.random = np.random.default_rng(0)
        self.weights: dict[str, tuple[Any, Any]] = {}
        self.values: list[Value] = []
        tape = Tape()
        rows = onnx_ir.val("x", FLOATS.dtype, ["n", WIDTH])
        gate = self._layer(tape, rows, "gate", WIDTH, INNER)
        up = self._layer(tape, rows, "up", WIDTH, INNER, has_bias=has_bias)
        product = self._shaped(tape.op("Mul", [tape.op("Sigmoid", [gate]), up]), INNER)
        outputs = [self._layer(tape, product, "down", INNER, WIDTH)]
        if shows_product:
            outputs.append(self._shaped(tape.op("Identity", [product]), INNER))
        opsets = {"": 21, "com.microsoft": 1, DOMAIN: 1}
        graph = onnx_ir.Graph([rows], outputs, nodes=tape.nodes, opset_imports=opsets)
        for value in self.values:
            graph.register_initializer(value)
        self.model = onnx_ir.Model(graph, ir_version=10)
        expand_layers(self.model)
        self.counts = Counter(node.op_type for node in graph)
        options = onnxruntime.SessionOptions()
        for name, entry in products.form().entries.items():
            options.add_session_config_entry(name, entry)
        self.session = onnxruntime.InferenceSession(
            onnx_ir.to_proto(self.model).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )

    def run(self, rows: Any) -> Any:
        return self.session.run(None, {"x": rows})[0]

    def expected(self, rows: Any) -> Any:
        gate, up = self._product(rows, "gate"), self._product(rows, "up")
        return self._product(up * (1 + np.tanh(gate / 2)) / 2, "down")

    def _product(self, rows: Any, name: str) -> Any:
        codes, scale = self.weights[name]
        largest = np.abs(rows).max(-1, keepdims=True) / 127
        steps = np.rint(np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0))
        return steps.astype(np.float64) @ codes * scale * largest

    def _layer(
        self, tape: Tape, rows: Value, name: str, width: int, size: int, *, has_bias: bool = False
    ) -> Value:
        codes = self.random.integers(-127, 128, (width, size), np.int8)
        scale = self.random.random(size, np.float32) / 1000
        self.weights[name] = codes, scale
        arrays = {"codes": codes, "scale": scale}
        if has_bias:
            arrays["bias"] = np.zeros(size, np.float32)
        given = [
            onnx_ir.val(f"{name}.{kind}", const_value=onnx_ir.tensor(array))
            for kind, array in arrays.items()
        ]
        self.values += given
        return self._shaped(tape.op(OPERATOR, [rows, *given], domain=DOMAIN), size)

    def _shaped(self, value: Value, size: int) -> Value:
        value.shape, value.type = onnx_ir.Shape(["n", size]), FLOATS
        return value


@pytest.fixture(scope="module")
def gated() -> GatedLayers:
    return GatedLayers()


@pytest.fixture(scope="module")
def rows() -> Any:
    made = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    made[1] *= 1000
    made[3] = 0
    return made


def test_gated_layers_compute_what_their_parts_compute(gated: GatedLayers, rows: Any) -> None:
    found, expected = gated.run(rows), gated.expected(rows)
    # A code at the edge of a step may differ by one, so the comparison is with the largest number.
    assert (np.abs(found - expected).max(-1) <= 0.01 * np.abs(expected).max(-1)).all()


def test_a_row_of_gated_layers_depends_on_no_other_row(gated: GatedLayers, rows: Any) -> None:
    together = gated.run(rows)
    for index, row in enumerate(rows):
        assert np.array_equal(gated.run(row[None])[0], together[index])
        assert np.array_equal(gated.run(rows[index:])[0], together[index])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-10])
def test_rows_of_zeros_and_of_tiny_numbers_stay_finite(gated: GatedLayers, size: float) -> None:
    rows = np.zeros((3, WIDTH), np.float32)
    rows[1, ::2] = size
    found = gated.run(rows)
    assert (np.abs(found) <= max(size, 1e-42) * 1000).all()
    assert not found[::2].any()


def test_the_factor_of_a_gate_is_scaled_by_one_number_for_each_row() -> None:
    folded = GatedLayers().counts
    assert folded["QuantizeLinear"] == 2
    # The steps of two quantizations, rows of gate and down, the product, and the scale of up.
    assert folded["Mul"] == 2 + 2 + 1 + 1
    assert "Add" not in folded


@pytest.mark.parametrize("form", [{"has_bias": True}, {"shows_product": True}])
def test_a_factor_with_a_bias_or_another_reader_keeps_its_scale(
    form: dict[str, bool], gated: GatedLayers, rows: Any
) -> None:
    layers = GatedLayers(**form)
    assert layers.counts["Mul"] == 2 + 3 + 1
    assert np.allclose(layers.run(rows), gated.run(rows), rtol=1e-2, atol=1e-3)
