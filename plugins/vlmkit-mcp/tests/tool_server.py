"""An MCP server with tools that fail in various ways; run as a program."""

import asyncio
import io
import os
import socket
import sys

import PIL.Image
import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tools")


@server.tool()
def say(text: str) -> str:
    """Say a text."""
    return text


@server.tool()
def show(num: int = 1) -> list[Image]:
    """Show pictures."""
    content = io.BytesIO()
    PIL.Image.new("RGB", (8, 6), "teal").save(content, "PNG")
    return [Image(data=content.getvalue(), format="png")] * num


@server.tool()
def broken() -> Image:
    """Show what is no picture."""
    return Image(data=b"no picture", format="png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("out of order")


@server.tool()
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def die() -> str:
    """End the process."""
    os._exit(1)


@server.tool()
def environ() -> str:
    """Tell what the process was given."""
    return " ".join(f"{name}={os.environ.get(name)}" for name in ("GIVEN", "KEPT"))


@server.tool()
def number() -> str:
    """Tell which process this is."""
    return str(os.getpid())


@server.tool()
def secret() -> str:
    """Do what no model may."""
    return "done"


if __name__ == "__main__":
    if "--silent" in sys.argv:
        sys.stdin.read()
    elif "--http" in sys.argv:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(server.streamable_http_app(), log_config=None, ws="none")
            print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
            uvicorn.Server(config).run(sockets=[listener])
    else:
        server.run()
