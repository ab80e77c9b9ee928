"""Quantizes the linear layers of a traced vision tower to 8 bits.

Works on the graph of any family: a product with a constant matrix is a linear layer. Attention has
no constant matrices, and norms have no matrices, so both stay unchanged. The layer that reads
pixels stays unchanged too: it is small, and its rounding would affect all others.
"""

import numpy as np
import onnx_ir
import torch
from onnx_ir import Node, Value, convenience
from onnx_ir.passes import common

from vlmkit_onnx.export.quantize import token_codes
from vlmkit_onnx.export.token_linear import DOMAIN, OPERATOR, expand_layers

LAYERS = ("FusedMatMul", "Gemm", "MatMul")
MOVES = frozenset({"Cast", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
MIN_WIDTH = 16  # of both axes of a matrix: a narrower layer gains nothing


def quantize(model: onnx_ir.Model) -> int:
    """Quantize the linear layers of a graph in place; return their number."""
    layers = [node for node in model.graph if node.op_type in LAYERS and _is_linear(node)]
    for node in layers:
        _convert(model.graph, node)
    expand_layers(model)
    common.RemoveUnusedNodesPass()(model)
    return len(layers)


def _is_linear(node: Node) -> bool:
    rows, weight = node.inputs[:2]
    if rows is None or weight is None or weight.const_value is None or _reads_pixels(rows):
        return False
    if len(weight.const_value.shape) != 2 or min(weight.const_value.shape.numpy()) < MIN_WIDTH:
        return False
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    turns = ("transA", "transBatchA", "transBatchB")
    return factors == [1.0, 1.0] and not any(node.attributes.get_int(turn, 0) for turn in turns)


def _reads_pixels(value: Value) -> bool:
    """Return whether values are an input of the graph, at most reshaped or transposed."""
    while (node := value.producer()) is not None:
        if node.op_type not in MOVES or node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return value.const_value is None


def _convert(graph: onnx_ir.Graph, node: Node) -> None:
    """Replace a matrix product by a layer of 8 bits."""
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None  # noqa: S101, PT018 - is linear
    matrix = torch.from_numpy(np.array(weight.const_value.numpy(), np.float32))
    is_transposed = bool(node.attributes.get_int("transB", 0))  # [out, in]
    codes, scale = token_codes(matrix if is_transposed else matrix.t())
    constants = [
        onnx_ir.val(f"{weight.name}.{kind}", const_value=onnx_ir.tensor(array.numpy()))
        for kind, array in (("codes", codes), ("scale", scale))
    ]
    for value in constants:
        if value.name not in graph.initializers:
            graph.register_initializer(value)
    named = [graph.initializers[value.name] for value in constants if value.name is not None]
    layer = Node(DOMAIN, OPERATOR, [node.inputs[0], *named, *node.inputs[2:]])
    out, old = layer.outputs[0], node.outputs[0]
    out.shape, out.type = old.shape, old.type
    graph.insert_before(node, layer)
    convenience.replace_all_uses_with(old, out, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    out.name = old.name
