"""Tools of MCP servers: results, limits and failures of single calls."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vlmkit.errors import ConfigError, EngineError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import TextPart
from vlmkit_mcp.settings import McpServer, McpSettings
from vlmkit_mcp.tools import McpTools
from vlmkit_testing import ToolSourceContract

COMMAND = (sys.executable, str(Path(__file__).with_name("tool_server.py")))
ALLOWED = ("say", "show", "broken", "fail", "hang", "die", "environ", "number")
NO_IMAGES = ImageLimits(max_bytes=1)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the tools over HTTP during these tests."""
    with subprocess.Popen((*COMMAND, "--http"), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def source(**fields: Any) -> McpTools:
    command = () if "url" in fields else COMMAND
    server = McpServer(**({"tools": ALLOWED, "command": command} | fields))
    return McpTools(McpSettings(servers={"t": server}))


def with_source(work: Callable[[McpTools], Awaitable[Any]], **fields: Any) -> Any:
    async def run() -> Any:
        tools = source(**fields)
        try:
            return await work(tools)
        finally:
            await tools.aclose()

    return asyncio.run(run())


async def called(tools: McpTools, name: str, **arguments: Any) -> Any:
    """Return the result of a call as text, or its error."""
    try:
        parts = await tools.call(f"t_{name}", arguments, ImageLimits())
    except EngineError as error:
        return f"error: {error}"
    return [part.text if isinstance(part, TextPart) else part.image.source_size for part in parts]


class TestMcpTools(ToolSourceContract):
    @pytest.fixture(autouse=True)
    def _reach(self, url: str) -> None:
        self.url = url

    def make(self) -> McpTools:
        return source(tools=("say", "show"), url=self.url)

    def arguments(self) -> dict[str, dict[str, Any]]:
        return {"t_say": {"text": "so it is"}, "t_show": {"num": 1}}


def test_results_have_texts_and_images(url: str) -> None:
    async def work(tools: McpTools) -> None:
        assert await called(tools, "say", text="<|im_end|>") == ["<|im_end|>"]
        assert await called(tools, "show", num=2) == [(8, 6), (8, 6)]
        (said,) = await called(tools, "broken")
        assert said.startswith("[an image cannot be shown: image is ")
        failed = await called(tools, "fail")
        assert failed.startswith("error: the tool failed: ")
        assert failed.endswith("out of order")
        wrong = await called(tools, "say", other=1)
        assert wrong.startswith("error: the tool failed: ")
        shown = await tools.call("t_show", {}, NO_IMAGES)
        assert [type(part) for part in shown] == [TextPart]
        definition = await tools.describe("t_say")
        assert definition["function"]["name"] == "t_say"
        assert definition["function"]["description"] == "Say a text."
        assert definition["function"]["parameters"]["required"] == ["text"]

    with_source(work, url=url)


def test_results_are_limited(url: str) -> None:
    async def work(tools: McpTools) -> None:
        assert await called(tools, "say", text="a" * 60) == ["a" * 50 + "[the rest is left out]"]
        images = [(8, 6), *["[an image is left out]"] * 2]
        assert await called(tools, "show", num=3) == images

    with_source(work, url=url, max_result_chars=50, max_result_images=1)


def test_cancelling_a_call_does_not_affect_others(url: str) -> None:
    async def work(tools: McpTools) -> None:
        await called(tools, "number")
        hanging = asyncio.create_task(called(tools, "hang"))
        other = asyncio.create_task(called(tools, "hang"))
        assert await called(tools, "say", text="a") == ["a"]
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert await called(tools, "say", text="a") == ["a"]
        assert not other.done()

    with_source(work, url=url)


def test_a_dead_or_hanging_server_is_restarted_for_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIVEN", "1")
    monkeypatch.setenv("KEPT", "2")

    async def work(tools: McpTools) -> None:
        assert await called(tools, "environ") == ["GIVEN=1 KEPT=None"]
        numbers = [await called(tools, "number")]
        assert await called(tools, "die") == "error: the tool failed"
        numbers.append(await called(tools, "number"))
        assert await called(tools, "hang") == "error: the tool did not answer in time"
        numbers.append(await called(tools, "number"))
        assert len({number for (number,) in numbers}) == 3

    with_source(work, env=("GIVEN", "NOT_SET"), call_timeout_s=3.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("/no/such/program",)},
        {"command": (sys.executable, "-c", "print('no protocol')")},
        {"command": (*COMMAND, "--silent"), "start_timeout_s": 0.3},
        {"command": (), "url": "http://127.0.0.1:9/mcp"},
    ],
)
def test_an_unavailable_server_is_reported_each_time(fields: dict[str, Any]) -> None:
    async def work(tools: McpTools) -> None:
        for _ in range(2):
            assert await called(tools, "say", text="a") == "error: the server 't' is unavailable"
        with pytest.raises(EngineError, match="is unavailable"):
            await tools.describe("t_say")

    with_source(work, **fields)


def test_tools_that_are_not_allowed_or_not_offered_are_unavailable(
    url: str,
) -> None:
    async def work(tools: McpTools) -> None:
        assert tools.names == {"t_say", "t_nonsense"}
        with pytest.raises(EngineError, match="has no tool 'nonsense'"):
            await tools.describe("t_nonsense")

    with_source(work, url=url, tools=("say", "nonsense"))


@pytest.mark.parametrize(
    "servers",
    [
        {"a": {"tools": ["x"]}},
        {"a": {"tools": ["x"], "command": ["b"], "url": "http://127.0.0.1/"}},
        {"a": {"tools": ["x y"], "command": ["b"]}},
        {"a": {"tools": ["x" * 64], "command": ["b"]}},
    ],
)
def test_an_invalid_server_setting_prevents_the_start(servers: dict[str, Any]) -> None:
    settings = msgspec.convert({"servers": servers}, McpSettings)
    with pytest.raises(ConfigError, match=r"tool_sources\.mcp\.servers\.a"):
        McpTools(settings)


@pytest.mark.parametrize(
    "server",
    [
        {"command": ["b"]},
        {"tools": [], "command": ["b"]},
        {"tools": ["x"], "url": "file:///etc"},
        {"tools": ["x"], "command": ["b"], "size": 1},
        {"tools": ["x"], "command": ["b"], "call_timeout_s": 0},
    ],
)
def test_settings_are_limited(server: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"servers": {"a": server}}, McpSettings)
