"""Tool choice: whether an answer may call tools, must call one, or must call a named one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vlmkit.errors import RequestError

ToolChoice = Literal["auto", "required", "none"]
CHOICES: tuple[str, ...] = get_args(ToolChoice)


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one tool that an answer must call."""

    name: str


def check_tool_choice(
    choice: ToolChoice | NamedTool, tools: Sequence[Mapping[str, Any]] | None
) -> None:
    """Check a tool choice against the tools of its request.

    Raises:
        RequestError: the choice is invalid, or needs a tool that is missing.
    """
    if not isinstance(choice, NamedTool) and choice not in CHOICES:
        expected = ", ".join(CHOICES)
        raise RequestError(
            f"tool_choice must be one of {expected}, or a NamedTool", param="tool_choice"
        )
    if isinstance(choice, NamedTool) and choice.name not in map(tool_name, tools or ()):
        raise RequestError("tool_choice names a tool that is not in tools", param="tool_choice")
    if choice == "required" and not tools:
        raise RequestError("tool_choice is required, but there are no tools", param="tool_choice")


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name in a tool definition of OpenAI's form; empty if it has none."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def tool_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments; the schema of any object if it has none."""
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    return dict(schema) if isinstance(schema, Mapping) and schema else {"type": "object"}
