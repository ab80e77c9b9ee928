"""The connection to one MCP server, which starts on first use and again after a failure.

A session runs in a task of its own, since the SDK's contexts must be exited in the task that
entered them. A failed session accepts no new calls; its calls in progress may still finish.
"""

import asyncio
import logging
import os
from contextlib import suppress
from typing import Any

import msgspec
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool

from vlmkit.errors import EngineError
from vlmkit.kit.traces import trace_of
from vlmkit_mcp.settings import McpServer

log = logging.getLogger(__name__)

MAX_PAGES = 32  # of a server's list of tools
MAX_DEFINITION_BYTES = 2**16


class Connection:
    """Calls the tools of one server.

    Args:
        label: the operator's name of the server.
        server: the server's settings.
    """

    def __init__(self, label: str, server: McpServer) -> None:
        self.label = label
        self.server = server
        self._session: _Session | None = None
        self._ending: set[_Session] = set()
        self._is_closed = False

    async def definition(self, tool: str) -> Tool:
        """Return the server's definition of a tool.

        Raises:
            EngineError: the server is unavailable, or has no such tool.
        """
        session = self._current()
        try:
            await session.started()
        except EngineError:
            self._retire(session)
            raise
        if tool not in session.tools:
            raise EngineError(f"the server {self.label!r} has no tool {tool!r} that can be used")
        return session.tools[tool]

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool.

        Raises:
            EngineError: the call failed or took too long, or the server is unavailable.
        """
        session = self._current()
        try:
            await session.started()
            with session.in_use():
                return await self._called(session, tool, arguments)
        except EngineError:
            if session.has_failed:
                self._retire(session)
            raise

    async def aclose(self) -> None:
        """Stop the server; idempotent."""
        self._is_closed = True
        if self._session is not None:
            self._retire(self._session)
        for session in list(self._ending):
            await session.aclose()

    async def _called(
        self, session: "_Session", tool: str, arguments: dict[str, Any]
    ) -> CallToolResult:
        problem = "the tool failed"
        try:
            async with asyncio.timeout(self.server.call_timeout_s):
                return await session.client.call_tool(tool, arguments)
        except TimeoutError as error:
            session.has_failed = True
            log.warning("the server %r did not answer in time", self.label)
            raise EngineError("the tool did not answer in time") from error
        except MCPError as error:
            session.has_failed = error.code == CONNECTION_CLOSED
            if not session.has_failed:  # an error of this call alone
                problem = f"the tool failed: {error.message}"
            cause: BaseException = error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            session.has_failed = True  # the session's scope was cancelled, not this request
            cause = error
        except Exception as error:  # noqa: BLE001 - a server can make the SDK raise anything
            session.has_failed = True
            cause = error
        log.warning("a call of the server %r failed:\n%s", self.label, trace_of(cause))
        raise EngineError(problem) from cause

    def _current(self) -> "_Session":
        """Return the session for calls; start one if there is none."""
        if self._is_closed:
            raise EngineError(f"the server {self.label!r} was closed")
        if self._session is not None and self._session.has_failed:
            self._retire(self._session)
        if self._session is None:
            self._session = _Session(self.label, self.server)
        return self._session

    def _retire(self, session: "_Session") -> None:
        """Retire a session: it accepts no new calls and ends after its last one."""
        if self._session is session:
            self._session = None
        self._ending.add(session)
        session.task.add_done_callback(lambda _: self._ending.discard(session))
        session.end_when_idle()


class _Session:
    """A running or starting server, with a task of its own."""

    def __init__(self, label: str, server: McpServer) -> None:
        self.client: Client
        self.tools: dict[str, Tool] = {}
        self.has_failed = False
        self._label = label
        self._server = server
        self._num_calls = 0
        self._is_retired = False
        self._end = asyncio.Event()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(), name=f"mcp-{label}")

    async def started(self) -> None:
        """Wait until the server accepts calls.

        Raises:
            EngineError: the server is unavailable.
        """
        await asyncio.wait([self._started])
        self._started.result()

    def in_use(self) -> "_InUse":
        """Keep the session alive during a call."""
        return _InUse(self)

    def add_calls(self, num_calls: int) -> None:
        """Count a call that starts or has ended."""
        self._num_calls += num_calls
        self._end_if_due()

    def end_when_idle(self) -> None:
        """Accept no new calls, and end after the last one."""
        self._is_retired = True
        self._end_if_due()

    async def aclose(self) -> None:
        """End immediately."""
        self._end.set()
        if not self._started.done():
            self.task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self.task])

    def _end_if_due(self) -> None:
        if self._is_retired and not self._num_calls:
            self._end.set()

    async def _run(self) -> None:
        """Start the server, and keep it until the session ends."""
        try:
            client = Client(_target(self._server), cache=None)
            opening = asyncio.timeout(self._server.start_timeout_s)
            async with opening, client:
                self.tools = await _listed(client, self._server)
                opening.reschedule(None)
                self.client = client
                self._started.set_result(None)
                await self._end.wait()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            self.has_failed = True
            log.warning("the server %r did not start, or died:\n%s", self._label, trace_of(error))
            if not self._started.done():
                failure = EngineError(f"the server {self._label!r} is unavailable")
                failure.__cause__ = error
                self._started.set_exception(failure)
                self._started.exception()  # marks it as retrieved: waiting requests may be gone


class _InUse:
    """Counts a call while it runs."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.add_calls(1)

    def __exit__(self, *_: object) -> None:
        self._session.add_calls(-1)


def _target(server: McpServer) -> str | StdioServerParameters:
    if server.url:
        return server.url
    command, *arguments = server.command
    environ = {name: os.environ[name] for name in server.env if name in os.environ}
    return StdioServerParameters(command=command, args=arguments, env=environ)


async def _listed(client: Client, server: McpServer) -> dict[str, Tool]:
    """Return the allowed tools of a server."""
    found: dict[str, Tool] = {}
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            stated = (tool.description, tool.input_schema)
            is_object = tool.input_schema.get("type") == "object"
            is_short = len(msgspec.json.encode(stated)) <= MAX_DEFINITION_BYTES
            if tool.name in server.tools and is_object and is_short:
                found[tool.name] = tool
        if (cursor := page.next_cursor) is None:
            break
    return found
