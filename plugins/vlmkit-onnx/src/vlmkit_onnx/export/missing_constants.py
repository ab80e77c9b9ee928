"""Mends a graph in which torch's exporter left out constants that nodes refer to.

Its rewriting of limits into ``Clip`` names the bounds after what is clipped. Where one array is
clipped several times, as before the linear layers of Gemma 4's tower, the last bounds take the
place of the others among the graph's constants, and the graph would not open.
"""

import onnx_ir


def take_back(model: onnx_ir.Model) -> None:
    """Give a graph all constants that its nodes refer to, under names of their own."""
    graph = model.graph
    for node in graph:
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if graph.initializers.get(value.name or "") is not value:
                value.name = f"{node.name}.{value.name}"
                graph.register_initializer(value)
