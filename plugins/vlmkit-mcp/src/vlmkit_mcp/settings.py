"""What an operator can set about servers of the protocol whose tools models may use."""

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
    """A server of the protocol: a program that is started, or an address.

    Attributes:
        tools: those that models may use; no other is ever called.
        command: the program and its arguments.
        url: where it serves streamable HTTP, in place of a command.
        env: names of environment variables that the program gets besides those that any needs.
        start_timeout_s: time to start, or connect, and to list its tools.
        call_timeout_s: time for one call.
        max_result_chars: text of one call's result; the rest is cut off.
        max_result_images: images of one call's result; the rest is left out.
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
    """Which servers there are.

    Attributes:
        servers: by a name of the operator's, with which the names of their tools begin.
    """

    servers: dict[Label, McpServer] = {}
