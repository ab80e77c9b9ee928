"""Fields for tools in Anthropic's bodies, and the same in the form of OpenAI's."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError
from vlmkit_server.wire.sampling_fields import Label
from vlmkit_server.wire.tool_fields import (
    ChosenFunction,
    ChosenTool,
    Function,
    Tool,
    ToolFields,
    check_types,
    shown_type,
)
from vlmkit_server.wire.unused import LeftOut

ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9_.-]+$")]


CUSTOM = "custom"


class AnthropicTool(LeftOut, kw_only=True):
    """A tool of the client, or one of a type that Anthropic defines, which is ignored."""

    name: ToolName | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    input_examples: Annotated[list[dict[str, Any]], Meta(max_length=64)] | None = None
    strict: bool | None = None
    type: Label | None = None

    # Accepted without effect: values that describe the default, or fields of ignored tools.
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[list[Label], Meta(max_length=16)] | None = None

    @property
    def left_out(self) -> str | None:
        """The type of the tool, if it is not a tool of the client."""
        return shown_type(self.type, CUSTOM)


class ToolChoiceAuto(msgspec.Struct, kw_only=True, tag_field="type", tag="auto"):
    """The answer may call tools, which is the default."""

    disable_parallel_tool_use: bool | None = None


class ToolChoiceAny(msgspec.Struct, kw_only=True, tag_field="type", tag="any"):
    """The answer must call a tool."""

    disable_parallel_tool_use: bool | None = None


class ToolChoiceTool(msgspec.Struct, kw_only=True, tag_field="type", tag="tool"):
    """The answer must call the named tool."""

    name: Label
    disable_parallel_tool_use: bool | None = None


class ToolChoiceNone(msgspec.Struct, kw_only=True, tag_field="type", tag="none"):
    """The answer must not call tools."""


AnthropicTools = Annotated[list[AnthropicTool], Meta(max_length=128)]
ToolChoice = ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone


def tool_fields(tools: list[AnthropicTool] | None, choice: ToolChoice | None) -> ToolFields:
    """Return tools and the tool choice in the form of OpenAI's fields.

    Raises:
        RequestError: a tool has an unsupported type, or lacks its name or schema.
    """
    given = [(tool.left_out, tool.input_schema is not None) for tool in tools or ()]
    check_types(given, CUSTOM, "input_schema", must_call=isinstance(choice, ToolChoiceAny))
    if choice is None or isinstance(choice, ToolChoiceNone):
        disables_parallel = None
    else:
        disables_parallel = choice.disable_parallel_tool_use
    return ToolFields(
        tools=[_tool(n, t) for n, t in enumerate(tools or ()) if t.left_out is None] or None,
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=not disables_parallel,
    )


def _choice(choice: ToolChoice) -> Literal["none", "auto", "required"] | ChosenTool:
    if isinstance(choice, ToolChoiceTool):
        return ChosenTool(function=ChosenFunction(name=choice.name))
    if isinstance(choice, ToolChoiceAny):
        return "required"
    return "none" if isinstance(choice, ToolChoiceNone) else "auto"


def _refusal(path: str, supported: str) -> RequestError:
    return RequestError(
        f"{path} is not supported with this value by this server; supported are {supported}",
        param=path,
        code="unsupported_parameter",
    )


def _tool(number: int, tool: AnthropicTool) -> Tool:
    """Return a tool in OpenAI's form; examples of input go into its JSON schema."""
    path = f"tools[{number}]"
    if tool.name is None:
        raise RequestError(f"{path}.name is needed in a tool of type custom", param=path)
    if tool.defer_loading:
        raise _refusal(f"{path}.defer_loading", "false")
    if {*(tool.allowed_callers or ())} - {"direct"}:
        raise _refusal(f"{path}.allowed_callers", "direct")
    schema = tool.input_schema or {}
    if tool.input_examples:
        schema = schema | {"examples": tool.input_examples}
    function = Function(
        name=tool.name, description=tool.description, parameters=schema, strict=tool.strict
    )
    return Tool(function=function)
