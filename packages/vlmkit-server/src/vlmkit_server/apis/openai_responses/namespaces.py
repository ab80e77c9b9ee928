"""Functions in namespaces: the model sees their qualified names, and clients get both parts.

A qualified name is the namespace, a dot and the function's name.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_responses import wire as responses

MAX_FUNCTIONS = 128


class QualifiedName(NamedTuple):
    """The parts of a qualified name."""

    namespace: str
    name: str


def qualified_name(namespace: str | None, name: str) -> str:
    """Return the qualified name of a function, which the model reads and writes."""
    return f"{namespace}.{name}" if namespace else name


def names_of(tools: Iterable[responses.AnyTool] | None) -> Mapping[str, QualifiedName]:
    """Return the parts of the qualified names of all functions in namespaces."""
    return {
        qualified_name(tool.name, function.name): QualifiedName(tool.name, function.name)
        for tool in tools or ()
        if isinstance(tool, responses.NamespaceTool)
        for function in responses.functions_of(tool.tools)
    }


def shown_functions(tools: Iterable[responses.AnyTool] | None) -> list[responses.FunctionTool]:
    """Return the functions for the model, with qualified names.

    The description of a namespace precedes that of its first function.

    Raises:
        RequestError: there are too many functions, or a function in a namespace has the same
            qualified name as another function.
    """
    found: dict[str, responses.FunctionTool] = {}
    plain: list[responses.FunctionTool] = []
    for number, tool in enumerate(tools or ()):
        if isinstance(tool, responses.FunctionTool):
            plain.append(tool)
        elif isinstance(tool, responses.NamespaceTool):
            for function in _described(tool):
                if function.name in found:
                    path = f"tools[{number}].tools"
                    raise RequestError(f"{path} has a name twice", param=path)
                found[function.name] = function
    if any(tool.name in found for tool in plain):
        raise RequestError("a function has the full name of one in a namespace", param="tools")
    if len(plain) + len(found) > MAX_FUNCTIONS:
        raise RequestError(f"tools have over {MAX_FUNCTIONS} functions", param="tools")
    return [*plain, *found.values()]


def response_tools(
    tools: Iterable[responses.AnyTool] | None,
) -> list[responses.FunctionTool | responses.NamespaceTool]:
    """Return the tools that a response repeats: those that the model can call."""
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
    """Yield the functions of a namespace with their qualified names."""
    before = namespace.description
    for function in responses.functions_of(namespace.tools):
        texts = [text for text in (before, function.description) if text]
        described = "\n\n".join(texts) or None
        yield replace(
            function, name=qualified_name(namespace.name, function.name), description=described
        )
        before = None
