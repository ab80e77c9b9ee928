"""The tools of configured MCP servers, as a tool source for vlmkit's server.

The operator's settings list the tools. A server is started or connected to when one of its tools
is first requested.
"""

import re
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from vlmkit.errors import ConfigError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart
from vlmkit_mcp.connection import Connection
from vlmkit_mcp.results import parts_of_result
from vlmkit_mcp.settings import McpSettings

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # names that models can write


class McpTools:
    """The tools of several servers; see :class:`vlmkit_server.interfaces.tool_source.ToolSource`.

    Args:
        settings: the settings of the servers.

    Raises:
        ConfigError: a server needs exactly one of command and URL, or a tool's name is invalid.
    """

    def __init__(self, settings: McpSettings) -> None:
        self._connections: list[Connection] = []
        self._tools: dict[str, tuple[Connection, str]] = {}
        for label, server in settings.servers.items():
            place = f"tool_sources.mcp.servers.{label}"
            if bool(server.command) == bool(server.url):
                raise ConfigError(f"{place} must have a command, or a url, and not both")
            connection = Connection(label, server)
            self._connections.append(connection)
            for tool in server.tools:
                name = f"{label}_{tool}"
                if not _NAME.fullmatch(name):
                    raise ConfigError(f"{place}: {name!r} is not a valid tool name")
                self._tools[name] = (connection, tool)

    @property
    def names(self) -> frozenset[str]:
        """The names of the allowed tools: the server's name, ``_`` and the tool's name."""
        return frozenset(self._tools)

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return a tool's definition from its server; starts the server if necessary.

        Raises:
            EngineError: the server is unavailable, or has no such tool.
        """
        connection, tool = self._tools[name]
        stated = await connection.definition(tool)
        function = {"name": name, "description": stated.description or ""}
        return {"type": "function", "function": function | {"parameters": stated.input_schema}}

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Call a tool and return the texts and images of its result.

        Raises:
            EngineError: the call failed or took too long, or the server is unavailable.
        """
        connection, tool = self._tools[name]
        result = await connection.call(tool, dict(arguments))
        return await parts_of_result(result, connection.server, limits)

    async def aclose(self) -> None:
        """Stop all started servers."""
        for connection in self._connections:
            await connection.aclose()
