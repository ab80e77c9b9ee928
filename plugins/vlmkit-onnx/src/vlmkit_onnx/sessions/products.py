"""How a graph's 8-bit numbers are multiplied on this CPU, so that no sum is cut off.

CPUs of the x86 family without VNNI add two products of eight bits in sixteen, and cut off what does
not fit: a layer of signed weights gives other numbers than it should, without a word. ONNX Runtime
has kernels for unsigned weights that cut nothing off and are somewhat slower, and brings signed
weights to them where it is asked to. It has to be told where: on a CPU with VNNI or AMX the
kernels for signed weights are exact, and faster. ``products.onnx`` is one such layer with the
largest numbers there are; which form is taken is found out by computing it.
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
        "DequantizeLinear",  # with a product beside it, ONNX Runtime makes one of 8 bits of both
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
"""Operators that can have signed weights of 8 bits, and sums that would be cut off."""


class Form(NamedTuple):
    """One way to compute layers of 8-bit weights.

    Attributes:
        name: of the kernels, in two words.
        entries: what a session is configured with to take them.
    """

    name: str
    entries: Mapping[str, str]


SIGNED = Form("signed weights", MappingProxyType({}))
UNSIGNED = Form("unsigned weights", MappingProxyType({"session.x64quantprecision": "1"}))


@cache
def form() -> Form:
    """Return how sessions on this CPU multiply: the fastest way that is exact.

    Raises:
        CheckpointError: none is.
    """
    for known in (SIGNED, UNSIGNED):
        if are_exact(known):
            return known
    raise CheckpointError(
        "this CPU cuts off sums of 8-bit products, and the model is made of them",
        hint='export it with another precision, such as "int8"',
    )


def are_exact(form: Form) -> bool:
    """Multiply the largest numbers and compare: one row, as in decoding, and several."""
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
