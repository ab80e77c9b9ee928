"""What the exporters of torch and onnxscript are run in: silence, and no work that nobody wants.

What is traced, and into which graph, is the business of ``decoder`` and ``vision``; a graph is the
same with and without this.
"""

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
    """Trace without warnings that users could do nothing about, and in two thirds of the time.

    Tracers note the Python stack of each node, which no graph of ours keeps. The rewriter tries a
    rule of several outputs at each node, by way of all others, even where the rule begins with
    another operator.
    """
    logger = logging.getLogger("torch.onnx")
    level, notes_stacks = logger.level, fx.config.do_not_emit_stack_traces
    match = SimplePatternMatcher.match
    logger.setLevel(logging.ERROR)
    fx.config.do_not_emit_stack_traces = True
    SimplePatternMatcher.match = _first_operator_first(match)  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        fx.config.do_not_emit_stack_traces = notes_stacks
        SimplePatternMatcher.match = match  # type: ignore[method-assign]


def _first_operator_first(match: Match) -> Match:
    """Return a search that fails at once where a rule's first operator is not the node's."""

    def quick(
        self: SimplePatternMatcher, model: Any, graph: Any, node: Any, *others: Any, **named: Any
    ) -> MatchResult:
        if not self.pattern.has_single_output_node:
            begins = self.pattern.output_nodes[0].op_identifier()
            if begins is not None and begins != node.op_identifier():
                return MatchResult().fail("the node is of another operator")
        return match(self, model, graph, node, *others, **named)

    return quick
