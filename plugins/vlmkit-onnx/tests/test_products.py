"""The layer of largest numbers is what it says; a CPU that fails at it runs no such model."""

from pathlib import Path

import numpy as np
import pytest

from vlmkit.errors import CheckpointError
from vlmkit_onnx import products
from vlmkit_onnx.layout import DecoderGraph, Layout


def layout(precision: str) -> Layout:
    return Layout(
        kind="vlmkit",
        precision=precision,
        decoder=DecoderGraph(Path("decoder.onnx"), "slots"),
        embeddings=None,
        vision=None,
        max_sequence_tokens=1,
        is_batch_invariant=True,
    )


def made() -> bytes:
    """Make the graph that the package carries."""
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


def test_the_packaged_graph_is_the_one_made_here() -> None:
    assert products.GRAPH.read_bytes() == made()


def test_this_machine_is_exact_or_runs_no_such_model() -> None:
    if products.are_exact():
        products.refuse_cut_off_sums(layout("w8a8"))
    else:
        with pytest.raises(CheckpointError, match="cuts off sums"):
            products.refuse_cut_off_sums(layout("w8a8"))


def test_a_cpu_that_cuts_off_runs_other_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "are_exact", lambda: False)
    with pytest.raises(CheckpointError, match="the model is 'w8a8'"):
        products.refuse_cut_off_sums(layout("w8a8"))
    products.refuse_cut_off_sums(layout("int8"))
