"""Selects kernels for 8-bit products on this CPU whose sums do not saturate.

x86 CPUs without VNNI add two products of eight bits in sixteen bits, and saturate larger sums. A
layer of signed weights then computes wrong numbers without an error. ONNX Runtime has somewhat
slower kernels for unsigned weights that never saturate, and converts signed weights for them if a
session option says so. CPUs with VNNI or AMX compute signed weights exactly and faster.

``products.onnx`` is one such layer with the largest possible numbers. The selection depends on its
result.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit_onnx.sessions.runtime import onnxruntime

GRAPH = Path(__file__).with_name("products.onnx")
DEPTH, WIDTH = 64, 32  # numbers in a sum, and sums in a row
OPERATORS = frozenset(
    {
        "DequantizeLinear",  # ONNX Runtime may fuse it with a product into one of 8 bits
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
"""Operators that may have signed 8-bit weights, and sums that would saturate."""


class Form(NamedTuple):
    """One kind of kernels for layers of 8-bit weights.

    Attributes:
        name: of the kernels, in two words.
        entries: the session options that select them.
    """

    name: str
    entries: Mapping[str, str]


SIGNED = Form("signed weights", MappingProxyType({}))
UNSIGNED = Form("unsigned weights", MappingProxyType({"session.x64quantprecision": "1"}))


@cache
def form() -> Form:
    """Return the fastest kernels that are exact on this CPU.

    Raises:
        CheckpointError: no kernels are exact.
    """
    for known in (SIGNED, UNSIGNED):
        if are_exact(known):
            return known
    raise CheckpointError(
        "this CPU saturates sums of 8-bit products, which the model needs",
        hint='export it with another precision, such as "int8"',
    )


def are_exact(form: Form) -> bool:
    """Return whether kernels are exact for the largest numbers, with one row and with several."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in form.entries.items():
        options.add_session_config_entry(name, value)
    session = onnxruntime.InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])
    for num_rows in (1, 8):
        rows = np.full((num_rows, DEPTH), 255, np.uint8)
        (sums,) = session.run(None, {"rows": rows})
        if not (sums == (255 - 128) * 127 * DEPTH).all():
            return False
    return True
