"""Makes one linear layer of several of few bits that read the same activations.

Attention takes queries, keys and values from one projection as well as from three, and small
matrices are where starting a computation costs most. Each output is computed as before. Floats
are not joined: whoever exports them wants the layers of the model.
"""

from collections.abc import Sequence as Seq

import numpy as np
import onnx_ir
from onnx_ir import Node, Value

from vlmkit_onnx.export.token_linear import OPERATOR

# By operator, along which axis of each input its outputs lie; None for what is shared.
OUTPUT_AXES: dict[str, tuple[int | None, ...]] = {
    OPERATOR: (None, 1, 0, 0),
    "MatMulNBits": (None, 0, 0, 0, None, 0),
}


def join(outputs: Seq[Value | None]) -> Node | None:
    """Return a layer that gives several values, one behind the other; not yet in a graph.

    Its weights are put together when they are written, not before.

    Returns:
        None if they are not the outputs of layers of few bits that are of one kind, read the same
        value, and are themselves read once.
    """
    layers = [node for value in outputs if (node := _layer_of(value)) is not None]
    if len(layers) < len(outputs) or len({_kind_of(layer) for layer in layers}) != 1:
        return None
    first, widths = layers[0], [_width_of(layer) for layer in layers]
    inputs = [
        value
        if axis is None or value is None
        else _joined([layer.inputs[place] for layer in layers], axis, f"{first.name}.{place}")
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
    return (layer.op_type, layer.inputs[0], *(value is None for value in layer.inputs))


def _width_of(layer: Node) -> int:
    axis = OUTPUT_AXES[layer.op_type][1]
    assert axis is not None  # noqa: S101 - the table says so
    return _tensor(layer.inputs[1]).shape.numpy()[axis]


def _joined(parts: Seq[Value | None], axis: int, name: str) -> Value:
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
