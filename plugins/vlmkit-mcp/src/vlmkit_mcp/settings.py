"""The settings of the MCP servers whose tools models may use."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Positive, Seconds

Label = Annotated[
    str,
    Meta(pattern="^[A-Za-z0-9-]{1,32}$", description="1 to 32 letters, digits and '-'"),
]

Url = Annotated[
    str,
    Meta(
        pattern="^(https?://.+)?$",
        description="a URL of http or https",
        examples=["https://tools.example.com/mcp"],
    ),
]


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server: a program to start, or a URL.

    Attributes:
        tools: the tools that models may use; no other tool is called.
        command: the program and its arguments.
        url: the URL of its streamable HTTP, instead of a command.
        env: names of environment variables to pass to the program, besides the usual ones.
        start_timeout_s: the most time to start or connect, and to list its tools.
        call_timeout_s: the most time for one call.
        max_result_chars: the most characters of text in a result; the rest is cut off.
        max_result_images: the most images in a result; the rest is left out.
    """

    tools: Annotated[tuple[str, ...], Meta(min_length=1, max_length=128)]
    command: tuple[str, ...] = ()
    url: Url = ""
    env: tuple[str, ...] = ()
    start_timeout_s: Seconds = 30.0
    call_timeout_s: Seconds = 60.0
    max_result_chars: Positive = 50_000
    max_result_images: Positive = 8


class McpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The MCP servers.

    Attributes:
        servers: the servers by name; the name is the prefix of their tools' names.
    """

    servers: dict[Label, McpServer] = {}
