"""An agent asks the packaged model about an image, by the official MCP client."""

import asyncio
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters

PICTURES = Path(__file__).parents[1] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"


def test_an_agent_asks_the_demo_about_an_image():
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "vlmkit", "mcp", "demo", "--folder", str(PICTURES)],
        env=dict(os.environ),
    )

    async def ask():
        arguments = {"question": "What is in this picture?", "images": ["shapes.png"]}
        async with Client(server) as client:
            return await client.call_tool("ask_about_image", arguments)

    result = asyncio.run(ask())
    assert not result.is_error
    (answer,) = result.content
    assert "blue circle" in answer.text
    assert "red square" in answer.text
