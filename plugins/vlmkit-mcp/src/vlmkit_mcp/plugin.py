"""The hooks of vlmkit-mcp. Imports nothing heavy: the build functions do."""

import importlib.util
from typing import Any

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_mcp.settings import McpSettings
from vlmkit_server.interfaces.tool_source import ToolSource

VLMKIT_API = (1, 0)


def _why_not() -> str | None:
    found = importlib.util.find_spec("mcp")
    return None if found else "the package mcp is not installed"


def _build_command(_: BuildContext) -> Any:
    from vlmkit_mcp.command import mcp

    return mcp


def _build_tools(context: BuildContext) -> ToolSource:
    from vlmkit_mcp.tools import McpTools

    return McpTools(context.settings)


@hookimpl
def vlmkit_register_tool_sources(registry: Registry[ToolSource]) -> None:
    """Register ``tool_sources.use = ["mcp"]``."""
    registry.add(
        "mcp",
        _build_tools,
        why_not=_why_not,
        settings=McpSettings,
        description="tools of servers of the Model Context Protocol",
    )


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Register ``vlmkit mcp``."""
    registry.add(
        "mcp",
        _build_command,
        why_not=_why_not,
        description="Let agents ask a model about pictures, over the Model Context Protocol.",
    )
