"""Runs the exporters of torch and onnxscript without warnings and without superfluous work.

Traces nothing itself; ``decoder`` and ``vision`` do. The graph is the same without it.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onnxscript.rewriter.pattern import MatchResult, SimplePatternMatcher
from torch import fx

Match = Callable[..., MatchResult]


@contextmanager
def tracing() -> Iterator[None]:
    """Hide warnings that users cannot act on, and halve the time of tracing.

    Tracers record the Python stack of each node, which our graphs drop. The rewriter tries each
    rule at each node, even if the rule ends with another operator. The garbage collector would scan
    millions of live objects thousands of times.
    """
    logger = logging.getLogger("torch.onnx")
    level, notes_stacks = logger.level, fx.config.do_not_emit_stack_traces
    match, collects = SimplePatternMatcher.match, gc.isenabled()
    logger.setLevel(logging.ERROR)
    fx.config.do_not_emit_stack_traces = True
    SimplePatternMatcher.match = _operator_first(match)  # type: ignore[method-assign]
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        fx.config.do_not_emit_stack_traces = notes_stacks
        SimplePatternMatcher.match = match  # type: ignore[method-assign]
        if collects:
            gc.enable()


def _operator_first(match: Match) -> Match:
    """Return a matcher that fails at once if a rule's operator is not the node's."""

    def quick(
        self: SimplePatternMatcher, model: Any, graph: Any, node: Any, *others: Any, **named: Any
    ) -> MatchResult:
        operator = self.pattern.output_nodes[0].op_identifier()  # its domain, name and overload
        if operator is not None and operator[1] != node.op_type:
            return MatchResult().fail("the node is of another operator")
        return match(self, model, graph, node, *others, **named)

    return quick
