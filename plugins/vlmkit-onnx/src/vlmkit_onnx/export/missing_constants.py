"""Restores constants that torch's exporter omits although nodes refer to them.

The exporter rewrites limits into ``Clip`` and names the bounds after the clipped array. If one
array is clipped several times, as in front of the linear layers of Gemma 4's tower, the last bounds
replace the others among the graph's constants. Such a graph cannot be opened.
"""

import onnx_ir


def restore_constants(model: onnx_ir.Model) -> None:
    """Register all constants that nodes of a graph refer to, under unique names."""
    graph = model.graph
    for node in graph:
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if graph.initializers.get(value.name or "") is not value:
                value.name = f"{node.name}.{value.name}"
                graph.register_initializer(value)
