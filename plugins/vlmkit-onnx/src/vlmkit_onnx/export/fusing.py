"""Fuses several quantized linear layers that read the same activations into one.

Attention accepts queries, keys and values from one projection, and the start of a computation costs
most for small matrices. Each output is computed as before. Layers of floats are not fused, so that
such an export has the layers of the model.
"""

from collections.abc import Sequence as Seq

import numpy as np
import onnx_ir
from onnx_ir import Node, Value

from vlmkit_onnx.export.token_linear import OPERATOR

# By operator, the axis of each input along which outputs lie; None for shared inputs.
OUTPUT_AXES: dict[str, tuple[int | None, ...]] = {
    OPERATOR: (None, 1, 0, 0),
    "MatMulNBits": (None, 0, 0, 0, None, 0),
}


def fuse(outputs: Seq[Value | None]) -> Node | None:
    """Return a layer, not yet in a graph, whose output concatenates several values.

    Its weights are concatenated only when they are written.

    Returns:
        None unless all values are read once, and are outputs of quantized layers of one kind that
        read the same value.
    """
    layers = [node for value in outputs if (node := _layer_of(value)) is not None]
    if len(layers) < len(outputs) or len({_kind_of(layer) for layer in layers}) != 1:
        return None
    first, widths = layers[0], [_width_of(layer) for layer in layers]
    inputs = [
        value
        if axis is None or value is None
        else _fused([layer.inputs[place] for layer in layers], axis, f"{first.name}.{place}")
        for place, (value, axis) in enumerate(
            zip(first.inputs, OUTPUT_AXES[first.op_type], strict=False)
        )
    ]
    attributes = dict(first.attributes)
    if "N" in attributes:
        attributes["N"] = onnx_ir.AttrInt64("N", sum(widths))
    made = Node(first.domain, first.op_type, inputs, attributes.values(), version=first.version)
    out = first.outputs[0]
    made.outputs[0].type = out.type
    if out.shape is not None:
        made.outputs[0].shape = onnx_ir.Shape([*out.shape[:-1], sum(widths)])
    return made


def _layer_of(value: Value | None) -> Node | None:
    node = None if value is None or len(value.uses()) != 1 else value.producer()
    return node if node is not None and node.op_type in OUTPUT_AXES else None


def _kind_of(layer: Node) -> tuple[object, ...]:
    form = [
        layer.attributes[name].value for name in ("bits", "block_size") if name in layer.attributes
    ]
    absent = [value is None for value in layer.inputs]
    return (layer.op_type, layer.inputs[0], *form, *absent)


def _width_of(layer: Node) -> int:
    axis = OUTPUT_AXES[layer.op_type][1]
    assert axis is not None  # noqa: S101 - see the table
    return _tensor(layer.inputs[1]).shape.numpy()[axis]


def _fused(parts: Seq[Value | None], axis: int, name: str) -> Value:
    tensors = [_tensor(part) for part in parts]
    shape = list(tensors[0].shape.numpy())
    shape[axis] = sum(tensor.shape.numpy()[axis] for tensor in tensors)
    whole = onnx_ir.LazyTensor(
        lambda: onnx_ir.tensor(np.concatenate([tensor.numpy() for tensor in tensors], axis)),
        dtype=tensors[0].dtype,
        shape=onnx_ir.Shape(shape),
        name=f"{name}.joined",
    )
    return onnx_ir.val(whole.name, const_value=whole)


def _tensor(value: Value | None) -> onnx_ir.TensorProtocol:
    assert value is not None and value.const_value is not None  # noqa: S101, PT018 - a weight
    return value.const_value
