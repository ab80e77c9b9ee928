"""Rewrites operators of a traced vision tower that ONNX Runtime's CPU kernels run slowly.

Every rewrite computes what it replaces, and is skipped if the graph does not fit it. The rewrites
depend on the graph alone, not on the family.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnx_ir import Node, Value, convenience
from onnx_ir.passes import common
from onnx_ir.tape import Tape

SKIP = "SkipLayerNormalization"


def rewrite_tower(model: onnx_ir.Model) -> None:
    """Rewrite a traced tower in place."""
    graph = model.graph
    for node in list(graph):
        if node.op_type == SKIP:
            _split_sum_and_norm(graph, node)
        elif node.op_type == "Conv":
            _replace_patch_convolution(graph, node)
        elif node.op_type == "Split":
            _split_projection(graph, node)
    common.RemoveUnusedNodesPass()(model)


def _split_sum_and_norm(graph: onnx_ir.Graph, node: Node) -> None:
    """Split a fused sum and norm, which takes three times as long as both apart."""
    inputs = [*node.inputs, *[None] * (5 - len(node.inputs))]
    states, skip, weight, shift, bias = inputs[:5]
    if any(output.uses() for output in node.outputs[1:3]):
        return
    tape = Tape()
    if bias is not None:
        states = tape.op("Add", [states, bias])
    total = tape.op("Add", [states, skip])
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    normed = tape.op("LayerNormalization", [total, weight, shift], {"axis": -1, "epsilon": epsilon})
    made = [normed, total] if len(node.outputs) > 3 else [normed]
    _replace(graph, node, tape, made, [node.outputs[0], *node.outputs[3:]])


def _replace_patch_convolution(graph: onnx_ir.Graph, node: Node) -> None:
    """Replace a convolution whose kernel covers its whole input by a matrix product."""
    pixels, kernel, *bias = node.inputs
    if pixels is None or kernel is None or kernel.const_value is None or pixels.shape is None:
        return
    weight = kernel.const_value.numpy()
    covers = [*pixels.shape][1:] == [*weight.shape[1:]]
    pads = any(node.attributes.get_ints("pads", [0]))
    if not covers or pads or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return
    outputs, width = len(weight), int(np.prod(weight.shape[1:]))
    tape = Tape()
    flat = tape.op("Reshape", [pixels, _constant(graph, kernel, "flat", [-1, width])])
    matrix = np.ascontiguousarray(weight.reshape(outputs, width).T)
    made = tape.op("MatMul", [flat, _constant(graph, kernel, "matrix", matrix)])
    if bias and bias[0] is not None:
        made = tape.op("Add", [made, bias[0]])
    spread = [-1, outputs, *[1] * (weight.ndim - 2)]
    made = tape.op("Reshape", [made, _constant(graph, kernel, "spread", spread)])
    _replace(graph, node, tape, [made], node.outputs)


def _split_projection(graph: onnx_ir.Graph, node: Node) -> None:
    """Split a matrix product whose output is cut into parts, which would copy each part."""
    packed = node.inputs[0]
    product = None if packed is None else packed.producer()
    if packed is None or product is None or product.op_type != "MatMul" or len(packed.uses()) > 1:
        return
    weight = product.inputs[1]
    if weight is None or weight.const_value is None or packed.shape is None:
        return
    axis = node.attributes.get_int("axis", 0) % len(packed.shape)
    matrix = weight.const_value.numpy()
    if axis != len(packed.shape) - 1 or matrix.ndim != 2:
        return
    sizes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    if sizes is None:
        if matrix.shape[1] % len(node.outputs):
            return
        ends = matrix.shape[1] // len(node.outputs) * np.arange(1, len(node.outputs))
    else:
        ends = np.cumsum(sizes.numpy())[:-1]
    tape, made = Tape(), []
    for number, part in enumerate(np.split(matrix, ends, axis=1)):
        constant = _constant(graph, weight, f"part{number}", np.ascontiguousarray(part))
        made.append(tape.op("MatMul", [product.inputs[0], constant]))
    _replace(graph, node, tape, made, node.outputs)


def _replace(
    graph: onnx_ir.Graph, node: Node, tape: Tape, made: Sequence[Value], old: Sequence[Value]
) -> None:
    for new, before in zip(made, old, strict=True):
        new.shape, new.type = before.shape, before.type
    graph.insert_before(node, tape.nodes)
    for new, before in zip(made, old, strict=True):
        convenience.replace_all_uses_with(before, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    for new, before in zip(made, old, strict=True):
        new.name = before.name


def _constant(
    graph: onnx_ir.Graph, beside: Value, kind: str, array: NDArray[np.generic] | list[int]
) -> Value:
    name = f"{beside.name}.{kind}"
    if name not in graph.initializers:
        value = onnx_ir.val(name, const_value=onnx_ir.tensor(np.asarray(array), name=name))
        graph.register_initializer(value)
    return graph.initializers[name]
