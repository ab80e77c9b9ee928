"""Decode steps with compiled code (``torch.compile``), which joins small kernels of a layer.

The code between the attention of layers is compiled; attention is called as it is. Values of new
code are compared with those of the model as it is, so a compiler that fails or computes something
else costs time but no answer.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from vlmkit.kit.one_line import named
from vlmkit_torch.attention.load_check import excess_error
from vlmkit_torch.attention.paged import AttentionContext
from vlmkit_torch.devices import faults

log = logging.getLogger(__name__)

BACKEND = "inductor"
MAX_COMPILING_STEPS = 8
"""Steps that may compile code: of one row, of several, and with other axes of positions."""


class CompiledDecoder:
    """Computes decode steps of one engine.

    Attributes:
        num_graphs: pieces of code that were compiled.
        is_used: whether steps are computed by compiled code.

    Args:
        decoder: of the model.
        context: of its attention layers, which become calls out of the compiled code.
    """

    def __init__(self, decoder: nn.Module, context: AttentionContext) -> None:
        self.num_graphs = 0
        self.is_used = True
        self._decoder = decoder
        self._num_compiling_steps = 0
        self._backend: Callable[..., Any] | None = None
        own: Any = torch.compiler.disable(context.attend_step)  # type: ignore[no-untyped-call]
        context.attend_step = own
        self._compiled = torch.compile(decoder, dynamic=True, backend=self._compile)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Return the output of the decoder for one decode step."""
        if not self.is_used:
            return self._decoder(**arguments)
        before, began_s, found, reason = self.num_graphs, time.perf_counter(), None, ""
        try:
            found = self._compiled(**arguments)
        except Exception as error:
            if faults.is_out_of_memory(error) or faults.is_of_device(error):
                raise
            reason = named(error)
        if found is not None and self.num_graphs == before:
            return found
        took_s = time.perf_counter() - began_s
        # Outside the handler, because the error references what was computed.
        expected = self._decoder(**arguments)
        reason = reason or self._objection(found, expected)
        if reason:
            self.is_used = False
            log.warning("decode steps are not compiled: %s", reason)
        else:
            log.info("compiled decode steps: %d graphs in %.1f s", self.num_graphs - before, took_s)
        return expected

    def _objection(self, found: Any, expected: Any) -> str:
        """Return why new code must not be used; empty if it agrees with the model as it is."""
        self._num_compiling_steps += 1
        if self._num_compiling_steps > MAX_COMPILING_STEPS:
            return f"after {MAX_COMPILING_STEPS} steps that were compiled, another one was"
        error = excess_error(found.last_hidden_state, expected.last_hidden_state)
        return "" if error is None else f"values differ by {error:.1g} of their length"

    def _compile(self, graph: Any, inputs: Any) -> Any:
        if self._backend is None:
            from torch._dynamo.backends.registry import lookup_backend

            self._backend = lookup_backend(BACKEND)
        self.num_graphs += 1
        return self._backend(graph, inputs)
