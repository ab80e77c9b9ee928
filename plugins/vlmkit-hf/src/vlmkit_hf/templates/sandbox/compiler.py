# ruff: noqa: N802, D102 - Jinja's compiler names its visitors so; each name says what it writes
"""Compiles templates to code that counts its work, and computes nothing at compile time.

Jinja's own compiler folds constants, ``"x"|center(3000000000)`` among them. It compiles loops,
comparisons, slices and literals to plain Python. Decides what is counted, not what is allowed.
"""

from collections.abc import Iterable
from typing import Any

import jinja2.compiler
from jinja2 import nodes
from jinja2.compiler import Frame

NODES_PER_STEP = 2**5
"""Nodes of a body for each step that a run of it costs."""

_BODIES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


def count_bodies(tree: nodes.Template) -> nodes.Template:
    """Make each run of a loop's or macro's body cost steps in proportion to its size."""
    found: list[Any] = list(tree.find_all(_BODIES))
    for node in found:
        size = 1 + sum(1 for _ in node.find_all(nodes.Node)) // NODES_PER_STEP
        node.body.insert(0, nodes.ExprStmt(_steps(size, node.lineno), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(_steps(1, node.lineno), node.test, lineno=node.lineno)
    return tree


def _steps(number: int, line: int) -> nodes.Expr:
    return nodes.EnvironmentAttribute(f"count_steps({number})", lineno=line)


class CountingCompiler(jinja2.compiler.CodeGenerator):
    """Writes calls of the environment where Jinja writes plain Python."""

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        self._write_measured(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        self.write(f" {jinja2.compiler.operators[node.op]} ")
        self._write_measured(node.expr, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.count_part(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.count(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.count(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.count({")
        for pair in node.items:
            self._write_measured(pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def _write_measured(self, node: nodes.Expr, frame: Frame) -> None:
        """Write an expression whose value is compared or hashed."""
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
            return
        self.write("environment.measured(")
        self.visit(node, frame)
        self.write(")")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({super()._output_const_repr(group)})"

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)
