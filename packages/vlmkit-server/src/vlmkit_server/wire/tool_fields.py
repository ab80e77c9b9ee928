"""The fields by which a client offers tools, and the tools that the model sees."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError
from vlmkit.types.tool_choice import NamedTool, ToolChoice
from vlmkit_server.wire.sampling_fields import Label, SamplingFields
from vlmkit_server.wire.unused import LeftOut

Arguments = str | dict[str, Any] | None
"""The arguments of a call: the JSON text of an object, the object itself, or none."""

FUNCTION = "function"
OTHER = "other"
FunctionName = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_.-]+$")]


OTHER_TOOL_TYPES = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
"""Types of OpenAI's tools that this server cannot run, in any API."""

_KNOWN_TYPE = re.compile(
    "|".join(OTHER_TOOL_TYPES) + "|namespace|mcp_toolset|"
    "(advisor|bash|browser_toolset|code_execution|computer|computer_toolset|memory|text_editor|"
    "tool_search_tool_bm25|tool_search_tool_regex|web_fetch|web_search)(_[0-9]{8})?"
)


class Function(msgspec.Struct, kw_only=True):
    """A function that can be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def shown_type(kind: str | None, own: str) -> str | None:
    """Return a tool's type as reports show it; None for the supported type."""
    if kind in (None, own):
        return None
    return kind if kind and _KNOWN_TYPE.fullmatch(kind) else OTHER


class Tool(LeftOut, kw_only=True):
    """A function, or a tool of an unsupported type, which is left out."""

    type: Label | None = None
    function: Function | None = None

    @property
    def left_out(self) -> str | None:
        """Its type, if it is no function."""
        return shown_type(self.type, FUNCTION)


class ChosenFunction(msgspec.Struct, kw_only=True):
    """The function that must be called."""

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

    @property
    def shown_functions(self) -> list[Function]:
        """The functions that the model sees."""
        return [t.function for t in self.tools or () if t.function and t.left_out is None]


def check_tool_types(body: ToolFields) -> None:
    """Check that each tool is a function, or can be left out.

    Raises:
        RequestError: one is neither.
    """
    tools = [(tool.left_out, tool.function is not None) for tool in body.tools or ()]
    check_types(tools, FUNCTION, "function", must_call=body.tool_choice == "required")


def check_types(
    tools: Iterable[tuple[str | None, bool]], own: str, definition: str, *, must_call: bool
) -> None:
    """Check that each tool of another type can be left out, and that the others are defined.

    Args:
        tools: of each, its type if unsupported, and whether it defines a function, which makes
            another type a mistake.
        own: the supported type.
        definition: the field that defines a function.
        must_call: whether the answer must call a tool, which could be one that is left out.

    Raises:
        RequestError: names the first invalid tool.
    """
    for number, (other, is_defined) in enumerate(tools):
        path = f"tools[{number}]"
        if other is None and not is_defined:
            message = f"{path}.{definition} is needed in a tool of type {own}"
            raise RequestError(message, param=path)
        if other is not None and (is_defined or must_call):
            raise unsupported_type(f"{path}.type", own, must_call=not is_defined)


def unsupported_type(path: str, own: str, *, must_call: bool) -> RequestError:
    """Return the refusal of a tool of another type.

    Args:
        path: the path of the type.
        own: the supported type.
        must_call: whether it is refused only because the answer must call a tool.
    """
    where = " where a call is required" if must_call else ""
    return RequestError(
        f"{path} has a value that this server does not support{where}; supported are {own}",
        param=path,
        code="unsupported_value",
    )


def tool_values(body: ToolFields) -> dict[str, Any]:
    """Return the tools of a body, by the names of a conversation's attributes."""
    choice: ToolChoice | NamedTool | None = (
        NamedTool(body.tool_choice.function.name)
        if isinstance(body.tool_choice, ChosenTool)
        else body.tool_choice
    )
    functions = body.shown_functions
    return {
        "tools": list(map(tool_definition, functions)) or None,
        "num_tool_chars": len(msgspec.json.encode(body.tools)) if body.tools else 0,
        "strict_tools": tuple(function.name for function in functions if function.strict),
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
    }


def arguments_text(given: Arguments) -> str:
    """Return the arguments of a call as text.

    Raises:
        RequestError: the object is nested too deeply.
    """
    if given is None or isinstance(given, str):
        return given or ""
    try:
        return msgspec.json.encode(given).decode()
    except RecursionError:
        raise RequestError("the arguments of a call are nested too deeply") from None


def tool_definition(function: Function) -> dict[str, Any]:
    """Return a definition as chat templates expect it, with defaults filled in."""
    definition = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": definition | {"parameters": parameters}}
