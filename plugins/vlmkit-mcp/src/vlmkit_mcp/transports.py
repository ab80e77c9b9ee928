"""The transports of the server: standard input and output, or HTTP on the loopback interface."""

import socket
from collections.abc import Callable
from typing import Any

import click
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from vlmkit.errors import ConfigError
from vlmkit_server.settings.server import ServerSettings

HOST = "127.0.0.1"
PATH = "/mcp"


async def over_stdio(server: Server[Any], begin: Callable[[], None]) -> None:
    """Serve one client until it closes its end of the pipe.

    Args:
        server: answers.
        begin: called once standard output is reserved for the protocol.
    """
    async with stdio_server() as (incoming, outgoing):
        begin()
        await server.run(incoming, outgoing, server.create_initialization_options())


def over_http(server: Server[Any], port: int, begin: Callable[[], None]) -> None:
    """Serve programs on this machine until a signal ends the server.

    Web pages have no access: hosts and origins other than the loopback interface's are refused.

    Args:
        server: answers.
        port: the port to listen on; 0 for a free one.
        begin: called when the port is open.

    Raises:
        ConfigError: the server cannot listen on the port.
    """
    settings = ServerSettings()
    app = server.streamable_http_app(
        streamable_http_path=PATH, host=HOST, max_request_body_size=settings.max_body_bytes
    )
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"port {port!r} cannot be listened on: {error.strerror}", hint="choose another --port"
        ) from error
    with listener:
        begin()
        click.echo(f"listening on http://{HOST}:{listener.getsockname()[1]}{PATH}", err=True)
        config = uvicorn.Config(
            app,
            ws="none",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=settings.max_connections,
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(config).run(sockets=[listener])
