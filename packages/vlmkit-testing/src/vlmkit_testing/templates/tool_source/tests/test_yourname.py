"""The source keeps vlmkit's contract, and calculates in decimals, whatever it is asked."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from vlmkit.errors import RequestError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import TextPart
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_testing import ToolSourceContract
from vlmkit_yourname.plugin import NAME, Calculator


class TestCalculator(ToolSourceContract):
    def make(self) -> ToolSource:
        return Calculator()

    def arguments(self) -> Mapping[str, Mapping[str, Any]]:
        return {NAME: {"expression": "6 * 7"}}


def value(expression: str) -> str:
    parts = asyncio.run(Calculator().call(NAME, {"expression": expression}, ImageLimits()))
    return "".join(part.text for part in parts if isinstance(part, TextPart))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("0.1 + 0.2", "0.3"), ("-(2 ** 10) / 4", "-256"), ("7 % 4 * 2", "6"), ("2 ** 0.5 // 1", "")],
)
def test_decimals_are_exact(expression: str, expected: str) -> None:
    if expected:
        assert value(expression) == expected
    else:
        with pytest.raises(RequestError, match="must be arithmetic"):
            value(expression)


@pytest.mark.parametrize("expression", ["9**9**9**9", "1/0", "0**0"])
def test_an_expression_without_a_value_is_an_error(expression: str) -> None:
    with pytest.raises(RequestError, match="has no value"):
        value(expression)


@pytest.mark.parametrize("expression", ["__import__('os')", "(" * 150, "1 if 1 else 2", "True"])
def test_code_is_never_run(expression: str) -> None:
    with pytest.raises(RequestError, match="must be arithmetic"):
        value(expression)
