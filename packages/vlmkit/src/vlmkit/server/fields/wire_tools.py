"""Fields of a body by which a client offers tools: shapes and bounds, no behaviour."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vlmkit.ask.tool_choice import NamedTool, ToolChoice
from vlmkit.server.fields.wire_sampling import Label, SamplingFields

FunctionName = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_.-]+$")]


class Function(msgspec.Struct, kw_only=True):
    """What can be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A function; tools of other types are refused."""

    function: Function


class ChosenFunction(msgspec.Struct, kw_only=True):
    """The one that must be called."""

    name: Label


class ChosenTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """The tool that must be called."""

    function: ChosenFunction


Tools = Annotated[list[Tool], Meta(max_length=128)]


class ToolFields(SamplingFields, kw_only=True):
    """The fields of a body that offer tools."""

    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None


def tool_values(body: ToolFields) -> dict[str, Any]:
    """Return what a body says of tools, by the names of :class:`vlmkit.Request`."""
    choice: ToolChoice | NamedTool | None = (
        NamedTool(body.tool_choice.function.name)
        if isinstance(body.tool_choice, ChosenTool)
        else body.tool_choice
    )
    return {
        "tools": [_definition(tool.function) for tool in body.tools] if body.tools else None,
        "strict_tools": tuple(
            tool.function.name for tool in body.tools or () if tool.function.strict
        ),
        "tool_choice": choice or ("auto" if body.tools else "none"),
        "parallel_tool_calls": body.parallel_tool_calls is not False or not body.tools,
    }


def _definition(function: Function) -> dict[str, Any]:
    """Return a definition as chat templates read it: without what the client left out."""
    said = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": said | {"parameters": parameters}}
