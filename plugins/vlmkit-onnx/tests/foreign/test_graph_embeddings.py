"""Embeddings by a graph, with and without inputs for image rows."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vlmkit.errors import CheckpointError
from vlmkit_onnx.prompts.graph_embeddings import GraphEmbeddings

IMAGE = 7
TABLE = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def test_rows_are_those_of_the_table_even_beside_images(tmp_path, make_embeddings, open_session):
    make_embeddings(tmp_path / "e.onnx", TABLE, IMAGE)
    embed = GraphEmbeddings(open_session(tmp_path / "e.onnx"), {}, IMAGE)
    ids = np.array([3, IMAGE, 5, IMAGE, 3])
    rows = embed(ids)
    assert embed.hidden_size == 8
    assert rows.dtype == np.float32
    assert rows.flags.writeable  # image rows replace the placeholders
    assert rows.shape == (5, 8)
    assert np.array_equal(rows[[0, 2, 4]], TABLE[[3, 5, 3]])
    assert np.array_equal(embed(np.array([1])), TABLE[[1]])
    assert embed(np.zeros(0, np.int64)).shape == (0, 8)


def other(file, inputs, outputs):
    """Write a graph whose embeddings are its last input."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", [list(inputs)[-1]], [next(iter(outputs))])],
        "embeddings",
        [value(name, *facts) for name, facts in inputs.items()],
        [value(name, *facts) for name, facts in outputs.items()],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), file)


IDS = (TensorProto.INT64, ["batch", "tokens"])
ROWS = (TensorProto.FLOAT, ["batch", "tokens", 8])


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (
            {"input_ids": IDS, "per_layer_inputs": ROWS},
            {"inputs_embeds": ROWS},
            "a graph of embeddings needs 'per_layer_inputs', which is not known",
        ),
        (
            {"image_features": ROWS},
            {"inputs_embeds": ROWS},
            "a graph of embeddings takes no token ids [batch, tokens]",
        ),
        (
            {"input_ids": IDS, "image_features": ROWS},
            {"rows": ROWS},
            "a graph of embeddings has no output 'inputs_embeds' of rows of a fixed width",
        ),
        (
            {"input_ids": IDS, "image_features": (TensorProto.FLOAT, ["b", "t", "w"])},
            {"inputs_embeds": (TensorProto.FLOAT, ["b", "t", "w"])},
            "a graph of embeddings has no output 'inputs_embeds' of rows of a fixed width",
        ),
    ],
)
def test_other_graphs_are_refused(tmp_path, open_session, inputs, outputs, message):
    other(tmp_path / "e.onnx", inputs, outputs)
    with pytest.raises(CheckpointError) as caught:
        GraphEmbeddings(open_session(tmp_path / "e.onnx"), {})
    assert str(caught.value) == message
