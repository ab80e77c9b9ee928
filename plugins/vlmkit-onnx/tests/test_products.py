"""8-bit products are exact on every CPU: sessions select kernels by a test computation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmkit.errors import CheckpointError
from vlmkit_onnx.sessions import products
from vlmkit_onnx.sessions.session import open_session
from vlmkit_onnx.settings import ComputeSettings


def made() -> bytes:
    """Return a new copy of the packaged graph."""
    onnx = pytest.importorskip("onnx")
    weights = np.full((products.DEPTH, products.WIDTH), 127, np.int8)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["rows", "weights", "zero"], ["sums"])],
        "products",
        [onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.UINT8, ["n", products.DEPTH])],
        [onnx.helper.make_tensor_value_info("sums", onnx.TensorProto.INT32, ["n", products.WIDTH])],
        [
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(np.array(128, np.uint8), "zero"),
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="")
    return model.SerializeToString(deterministic=True)


def test_the_packaged_graph_equals_a_new_one() -> None:
    assert products.GRAPH.read_bytes() == made()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A layer as other exporters quantize it: dynamic activations and signed weights."""
    onnx = pytest.importorskip("onnx")
    weights = np.full((products.DEPTH, products.WIDTH), -127, np.int8)
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]),
        onnx.helper.make_node("MatMulInteger", ["codes", "weights", "zero"], ["sums"]),
        onnx.helper.make_node("Cast", ["sums"], ["floats"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    shapes = {"x": ["n", products.DEPTH], "y": ["n", products.WIDTH]}
    ends = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    graph = onnx.helper.make_graph(
        nodes, "layer", [ends["x"]], [ends["y"]], [onnx.numpy_helper.from_array(weights, "weights")]
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "g.onnx"
    )
    return tmp_path / "g.onnx"


def sums(file: Path) -> Any:
    session = open_session(file, ComputeSettings(num_threads=1))
    return session.run(None, {"x": np.ones((3, products.DEPTH), np.float32)})[0]


def test_the_kernels_of_this_machine_are_exact() -> None:
    assert products.are_exact(products.form())


def test_unsigned_weights_are_exact_on_every_machine() -> None:
    assert products.are_exact(products.UNSIGNED)


@pytest.mark.parametrize("form", [products.SIGNED, products.UNSIGNED])
def test_the_first_exact_kernels_are_selected(
    form: products.Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [products.SIGNED, products.UNSIGNED]
    able = known[known.index(form) :]
    monkeypatch.setattr(products, "are_exact", lambda form: form in able)
    assert products.form.__wrapped__() is form


def test_a_cpu_without_exact_kernels_runs_only_graphs_without_8_bit_products(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "are_exact", lambda form: False)
    monkeypatch.setattr(products, "form", products.form.__wrapped__)
    with pytest.raises(CheckpointError, match="this CPU saturates sums"):
        open_session(foreign, ComputeSettings())
    monkeypatch.setattr(products, "OPERATORS", frozenset())
    open_session(foreign, ComputeSettings())


def test_layers_quantized_by_other_exporters_are_exact(foreign: Path) -> None:
    np.testing.assert_allclose(sums(foreign), -127 * products.DEPTH, rtol=1e-5)


def test_sessions_get_the_options_of_the_kernels(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "form", lambda: products.UNSIGNED)
    options = open_session(foreign, ComputeSettings()).get_session_options()
    for name, value in products.UNSIGNED.entries.items():
        assert options.get_session_config_entry(name) == value
