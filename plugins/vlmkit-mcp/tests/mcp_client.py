"""A synchronous MCP client on the official SDK, and the mock's expected answers about images."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import anyio.from_thread
import PIL.Image
from mcp import Client
from mcp.types import CallToolResult


class SyncClient:
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
def connected(server: Any, mode: str = "auto") -> Iterator[SyncClient]:
    with anyio.from_thread.start_blocking_portal() as portal:
        client = Client(server, mode=mode)
        with portal.wrap_async_context_manager(client):
            yield SyncClient(portal, client)


def texts(result: CallToolResult) -> list[str]:
    return [part.text for part in result.content if part.type == "text"]


def shown(image: PIL.Image.Image) -> str:
    """Return the description of an image by the mock."""
    width, height = image.size
    digest = hashlib.sha256(f"RGB {width}x{height}\0".encode() + image.tobytes()).hexdigest()
    return f"{width}x{height} sha256:{digest[:16]}"


Start = Callable[..., AbstractContextManager[SyncClient]]
"""Starts ``vlmkit mcp`` with arguments, and returns a connected client."""
