"""Expands 8-bit linear layers with a scale for each token into ONNX Runtime's operators.

While a decoder is traced, each of its w8a8 layers is one node of a private operator, so that
tracing and fusing handle one node instead of a dozen. Layers that read the same activations share
their quantization. A single row's small operators cost a tenth of its time, so there are few.
"""

from collections.abc import Hashable

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnx_ir import Node, Value, convenience
from onnx_ir.tape import Tape

DOMAIN = "vlmkit"
OPERATOR = "TokenLinear"
MIDDLE = 128  # the code that stands for zero


def expand_layers(model: onnx_ir.Model) -> None:
    """Expand every layer node of a graph in place."""
    expander = _Expander(model.graph)
    for node in [node for node in model.graph if node.domain == DOMAIN]:
        expander.expand(node)
    model.graph.opset_imports.pop(DOMAIN, None)


class _Expander:
    """Expands one graph's layers."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self.graph = graph
        self.rounded: dict[Value, tuple[Value, Value]] = {}
        self.middles: dict[Hashable, Value] = {}
        self.products: dict[Value, tuple[Value, Value]] = {}
        self.last_axis = self._constant("last_axis", np.array([-1], np.int64))
        self.step = self._constant("step", np.array(1 / 127, np.float32))
        self.one = self._constant("one", np.array(1, np.float32))
        self.middle = self._constant("middle", np.array(MIDDLE, np.uint8))

    def expand(self, node: Node) -> None:
        """Expand to ``(codes @ weights) * scale of the output * scale of the row + bias``."""
        inputs, weights, scale, *bias = node.inputs
        if inputs is None or weights is None or weights.const_value is None:
            raise ValueError("a linear layer of the graph reads nothing")
        if inputs not in self.rounded:
            width = weights.const_value.shape.numpy()[0]
            self.rounded[inputs] = self._rounded(node, inputs, width)
        codes, row_scale = self.rounded[inputs]
        tape = Tape()
        sums = tape.op(
            "MatMulIntegerToFloat",
            [codes, weights, self.one, scale, self.middle],
            domain="com.microsoft",
        )
        out = tape.op("Mul", [sums, row_scale])
        if bias:
            out = tape.op("Add", [out, bias[0]])
        else:
            self.products[out] = (sums, row_scale)
        old = node.outputs[0]
        out.shape, out.type = old.shape, old.type
        self.graph.insert_before(node, tape.nodes)
        convenience.replace_all_uses_with(old, out, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        out.name = old.name

    def _rounded(self, node: Node, inputs: Value, width: int) -> tuple[Value, Value]:
        """Return the quantized activations, and the scale of each row; a block is a whole row.

        The scale of a row of zeros is zero. Whatever its codes are, its sums times zero are zero.
        """
        postponed = self._postponed_scale(inputs)
        tape = Tape()
        largest = tape.op("ReduceMax", [tape.op("Abs", [inputs]), self.last_axis], {"keepdims": 1})
        scale = tape.op("Mul", [largest, self.step])
        if (key := _rows_of(inputs)) not in self.middles:
            self.middles[key] = tape.op("Expand", [self.middle, tape.op("Shape", [scale])])
        codes = tape.op(
            "QuantizeLinear",
            [inputs, scale, self.middles[key]],
            {"axis": -1, "block_size": width},
        )
        if postponed is not None:
            scale = tape.op("Mul", [scale, postponed])
        self.graph.insert_before(node, tape.nodes)
        return codes, scale

    def _postponed_scale(self, inputs: Value) -> Value | None:
        """Leave the rows of a gated layer's one factor unscaled; return the scale that they lack.

        Codes of a row do not depend on its scale. One number is multiplied in place of a whole row.
        """
        gated = inputs.producer()
        if gated is None or gated.op_type != "Mul" or inputs.is_graph_output():
            return None
        if any(use.node.domain != DOMAIN for use in inputs.uses()):
            return None
        for index, factor in enumerate(gated.inputs):
            if factor is None or factor not in self.products or len(factor.uses()) != 1:
                continue
            if factor.is_graph_output() or factor.shape != inputs.shape:
                continue
            sums, row_scale = self.products.pop(factor)
            sums.shape, sums.type = factor.shape, factor.type
            gated.replace_input_with(index, sums)
            scaled = factor.producer()
            assert scaled is not None  # noqa: S101 - a layer computed it
            self.graph.remove(scaled, safe=True)
            return row_scale
        return None

    def _constant(self, name: str, array: NDArray[np.generic]) -> Value:
        name = f"token_linear_{name}"
        value = onnx_ir.val(name, const_value=onnx_ir.tensor(array, name=name))
        self.graph.register_initializer(value)
        return value


def _rows_of(value: Value) -> Hashable:
    """Return a key that values with equally many rows share, as far as the graph states it."""
    sizes = [] if value.shape is None else [getattr(s, "value", s) for s in value.shape[:-1]]
    return tuple(sizes) if sizes and None not in sizes else value
