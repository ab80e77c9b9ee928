"""A synchronous MCP client on the official SDK, and the mock's expected answers about images."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import anyio.from_thread
import PIL.Image
from mcp import Client
from mcp.types import CallToolResult


class Agent:
    """An MCP client for tests without coroutines."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal, client: Client) -> None:
        self.portal = portal
        self.client = client

    def ask(self, question: str, *images: str, **arguments: Any) -> CallToolResult:
        return self.call({"question": question, "images": list(images)} | arguments)

    async def ask_async(self, question: str, *images: str) -> CallToolResult:
        arguments = {"question": question, "images": list(images)}
        return await self.client.call_tool("ask_about_image", arguments)

    def call(self, arguments: dict[str, Any]) -> CallToolResult:
        return self.portal.call(self.client.call_tool, "ask_about_image", arguments)


@contextmanager
def agent(server: Any, mode: str = "auto") -> Iterator[Agent]:
    with anyio.from_thread.start_blocking_portal() as portal:
        client = Client(server, mode=mode)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)


def texts(result: CallToolResult) -> list[str]:
    return [part.text for part in result.content if part.type == "text"]


def shown(image: PIL.Image.Image) -> str:
    """The mock's description of an image."""
    width, height = image.size
    digest = hashlib.sha256(f"RGB {width}x{height}\0".encode() + image.tobytes()).hexdigest()
    return f"{width}x{height} sha256:{digest[:16]}"


Start = Callable[..., AbstractContextManager[Agent]]
"""Starts ``vlmkit mcp`` with arguments, and an agent that asks it."""
