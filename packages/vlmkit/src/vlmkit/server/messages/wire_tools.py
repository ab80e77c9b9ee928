"""Fields of Anthropic's bodies by which a client offers tools, and what they say in a chat's."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vlmkit.server.fields.wire_sampling import Label
from vlmkit.server.fields.wire_tools import ChosenFunction, ChosenTool, Function, Tool

OwnName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9_.-]+$")]


class OwnTool(msgspec.Struct, kw_only=True):
    """What can be called; tools of other types, which Anthropic itself runs, are refused."""

    name: OwnName
    input_schema: dict[str, Any]
    description: str | None = None
    input_examples: Annotated[list[dict[str, Any]], Meta(max_length=64)] | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None

    # Taken, and without effect: what is the case anyway.
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Meta(max_length=1)] | None = None


class CallsAtWill(msgspec.Struct, kw_only=True, tag_field="type", tag="auto"):
    """The answer may call, as it is the case anyway."""

    disable_parallel_tool_use: bool | None = None


class CallsAny(msgspec.Struct, kw_only=True, tag_field="type", tag="any"):
    """The answer must call."""

    disable_parallel_tool_use: bool | None = None


class CallsOne(msgspec.Struct, kw_only=True, tag_field="type", tag="tool"):
    """The answer must call a certain tool."""

    name: Label
    disable_parallel_tool_use: bool | None = None


class CallsNone(msgspec.Struct, kw_only=True, tag_field="type", tag="none"):
    """The answer must not call."""


OwnTools = Annotated[list[OwnTool], Meta(max_length=128)]
OwnChoice = CallsAtWill | CallsAny | CallsOne | CallsNone


def chat_tools(tools: list[OwnTool] | None, choice: OwnChoice | None) -> dict[str, Any]:
    """Return what is said of tools, by the names of a chat's fields."""
    if choice is None or isinstance(choice, CallsNone):
        is_alone = None
    else:
        is_alone = choice.disable_parallel_tool_use
    return {
        "tools": [_tool(tool) for tool in tools or ()] or None,
        "tool_choice": None if choice is None else _choice(choice),
        "parallel_tool_calls": not is_alone,
    }


def _choice(choice: OwnChoice) -> Literal["none", "auto", "required"] | ChosenTool:
    if isinstance(choice, CallsOne):
        return ChosenTool(function=ChosenFunction(name=choice.name))
    if isinstance(choice, CallsAny):
        return "required"
    return "none" if isinstance(choice, CallsNone) else "auto"


def _tool(tool: OwnTool) -> Tool:
    """Return a tool as chats have it, its examples where JSON schema has a place for them."""
    schema = tool.input_schema
    if tool.input_examples:
        schema = schema | {"examples": tool.input_examples}
    function = Function(
        name=tool.name, description=tool.description, parameters=schema, strict=tool.strict
    )
    return Tool(function=function)
