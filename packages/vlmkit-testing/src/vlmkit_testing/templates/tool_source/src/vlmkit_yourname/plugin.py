"""A tool that calculates, since models are bad at it: exact decimal numbers, in bounded time."""

import ast
import decimal
import operator
from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Annotated, Any

import msgspec

import vlmkit
from vlmkit.errors import RequestError
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart
from vlmkit_server.interfaces.tool_source import ToolSource

VLMKIT_API = (1, 0)
NAME = "calculate"
MAX_CHARS = 200
OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
DEFINITION = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Returns the value of an arithmetic expression with + - * / % ** and ( ).",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "maxLength": MAX_CHARS}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}


class CalculatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[tool_sources.yourname]``.

    Attributes:
        digits: significant digits of a result.
    """

    digits: Annotated[int, msgspec.Meta(ge=1, le=100)] = 28


class Calculator:
    """One tool, ``calculate``.

    Args:
        settings: how exact it is.
    """

    names = frozenset({NAME})

    def __init__(self, settings: CalculatorSettings | None = None) -> None:
        digits = (settings or CalculatorSettings()).digits
        self._context = decimal.Context(prec=digits, Emin=-9999, Emax=9999)

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return the definition of the tool."""
        _refuse_unknown(name)
        return DEFINITION

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Return the value of the expression: it is short, so this holds nobody up.

        Raises:
            RequestError: it is none, or has no value.
        """
        _refuse_unknown(name)
        expression = arguments.get("expression")
        if not isinstance(expression, str) or len(expression) > MAX_CHARS:
            raise RequestError(f"'expression' must be a text of up to {MAX_CHARS} characters")
        try:
            tree = ast.parse(expression.strip(), mode="eval")
            value = self._value(tree.body)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise RequestError("'expression' must be arithmetic, such as (3 + 4.5) * 2") from error
        except decimal.DecimalException as error:
            raise RequestError(f"the expression has no value: {type(error).__name__}") from error
        return (TextPart(f"{value.normalize(self._context):f}"),)

    async def aclose(self) -> None:
        """Nothing runs."""

    def _value(self, node: ast.expr) -> decimal.Decimal:
        """Return what a part of an expression comes to; a ValueError says that it is none."""
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return self._context.create_decimal(repr(number))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._context.minus(self._value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
                with decimal.localcontext(self._context):
                    found = OPERATIONS[type(op)](self._value(left), self._value(right))
                return decimal.Decimal(found)
        raise ValueError(type(node).__name__)


def _refuse_unknown(name: str) -> None:
    if name != NAME:
        raise RequestError(f"there is no such tool; known: {NAME}")


def _build(context: BuildContext) -> ToolSource:
    return Calculator(context.settings)


@vlmkit.hookimpl
def vlmkit_register_tool_sources(registry: Registry[ToolSource]) -> None:
    """Offer ``tool_sources.use = ["yourname"]``."""
    registry.add(
        "yourname", _build, settings=CalculatorSettings, description="a tool that calculates"
    )
