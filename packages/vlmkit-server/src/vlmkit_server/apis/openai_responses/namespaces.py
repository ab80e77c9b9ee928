"""Functions in namespaces: the model is shown them by full names, and clients get both parts back.

A full name is the namespace's, a dot, and the function's.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_responses import wire as responses

MAX_FUNCTIONS = 128


class Named(NamedTuple):
    """The parts of a full name."""

    namespace: str
    name: str


def full_name(namespace: str | None, name: str) -> str:
    """Return what the model reads and writes for a function."""
    return f"{namespace}.{name}" if namespace else name


def names_of(tools: Iterable[responses.AnyTool] | None) -> Mapping[str, Named]:
    """Return the parts of the full names of all functions in namespaces."""
    return {
        full_name(tool.name, function.name): Named(tool.name, function.name)
        for tool in tools or ()
        if isinstance(tool, responses.NamespaceTool)
        for function in responses.functions_of(tool.tools)
    }


def shown_functions(tools: Iterable[responses.AnyTool] | None) -> list[responses.FunctionTool]:
    """Return the functions that the model is shown, by full names.

    The description of a namespace stands before that of its first function.

    Raises:
        RequestError: there are too many, or two of one full name, of which one is in a namespace.
    """
    found: dict[str, responses.FunctionTool] = {}
    plain: list[responses.FunctionTool] = []
    for number, tool in enumerate(tools or ()):
        if isinstance(tool, responses.FunctionTool):
            plain.append(tool)
        elif isinstance(tool, responses.NamespaceTool):
            for function in _described(tool):
                if function.name in found:
                    place = f"tools[{number}].tools"
                    raise RequestError(f"{place} has a name twice", param=place)
                found[function.name] = function
    if any(tool.name in found for tool in plain):
        raise RequestError("a function has the full name of one in a namespace", param="tools")
    if len(plain) + len(found) > MAX_FUNCTIONS:
        raise RequestError(f"tools have over {MAX_FUNCTIONS} functions", param="tools")
    return [*plain, *found.values()]


def response_tools(
    tools: Iterable[responses.AnyTool] | None,
) -> list[responses.FunctionTool | responses.NamespaceTool]:
    """Return the tools that a response repeats: those that the model is shown."""
    return [
        replace(
            tool, description=tool.description or "", tools=[*responses.functions_of(tool.tools)]
        )
        if isinstance(tool, responses.NamespaceTool)
        else tool
        for tool in tools or ()
        if isinstance(tool, responses.FunctionTool | responses.NamespaceTool)
    ]


def _described(namespace: responses.NamespaceTool) -> Iterable[responses.FunctionTool]:
    """Yield a namespace's functions by their full names."""
    before = namespace.description
    for function in responses.functions_of(namespace.tools):
        texts = [text for text in (before, function.description) if text]
        described = "\n\n".join(texts) or None
        yield replace(
            function, name=full_name(namespace.name, function.name), description=described
        )
        before = None
