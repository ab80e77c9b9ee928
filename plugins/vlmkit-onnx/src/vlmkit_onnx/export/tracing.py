"""What the exporters of torch and onnxscript are run in: silence, and no work that nobody wants.

What is traced, and into which graph, is the business of ``decoder`` and ``vision``; a graph is the
same with and without this.
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
    """Trace without warnings that users could do nothing about, and in half of the time.

    Tracers note the Python stack of each node, which no graph of ours keeps. The rewriter tries a
    rule at each node, even where the rule ends with another operator. Millions of objects that all
    stay are looked through for garbage thousands of times.
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
    """Return a search that fails at once where a rule's operator is not the node's."""

    def quick(
        self: SimplePatternMatcher, model: Any, graph: Any, node: Any, *others: Any, **named: Any
    ) -> MatchResult:
        operator = self.pattern.output_nodes[0].op_identifier()  # its domain, name and overload
        if operator is not None and operator[1] != node.op_type:
            return MatchResult().fail("the node is of another operator")
        return match(self, model, graph, node, *others, **named)

    return quick
