"""Whether this CPU multiplies 8-bit numbers rightly.

CPUs of the x86 family without VNNI add two products of eight bits in sixteen, and cut off what does
not fit. A model whose layers are computed so gives other answers than it should, without a word, so
it is turned down. ``products.onnx`` is one such layer with the largest numbers there are.
"""

from pathlib import Path

import numpy as np
import onnxruntime

from vlmkit.errors import CheckpointError
from vlmkit_onnx.layout import Layout

GRAPH = Path(__file__).with_name("products.onnx")
DEPTH, WIDTH = 64, 32  # numbers in a sum, and sums in a row


def refuse_cut_off_sums(layout: Layout) -> None:
    """Turn a model down that this CPU would compute wrongly.

    Raises:
        CheckpointError: its layers multiply 8-bit numbers, and this CPU cuts off their sums.
    """
    if layout.kind == "vlmkit" and layout.precision == "w8a8" and not are_exact():
        raise CheckpointError(
            "this CPU cuts off sums of 8-bit products, and the model is 'w8a8'",
            hint='export it with another precision, or set engine.precision = "int8"',
        )


def are_exact() -> bool:
    """Multiply the largest numbers and compare: one row, as in decoding, and several."""
    session = onnxruntime.InferenceSession(GRAPH, providers=["CPUExecutionProvider"])
    for num_rows in (1, 8):
        rows = np.full((num_rows, DEPTH), 255, np.uint8)
        (sums,) = session.run(None, {"rows": rows})
        if not (sums == (255 - 128) * 127 * DEPTH).all():
            return False
    return True
