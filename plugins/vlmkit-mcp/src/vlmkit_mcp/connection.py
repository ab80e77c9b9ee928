"""One server of the protocol: started when it is needed, and afresh after it died or hung.

A session belongs to a task of its own, since the SDK's contexts must be left where they were
entered. One that has failed takes no more calls; those that are under way may still end.
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
        label: how the operator calls it.
        server: how it is reached, and for how long it is waited for.
    """

    def __init__(self, label: str, server: McpServer) -> None:
        self.label = label
        self.server = server
        self._session: _Session | None = None
        self._ending: set[_Session] = set()
        self._is_closed = False

    async def definition(self, tool: str) -> Tool:
        """Return what the server states of a tool.

        Raises:
            EngineError: the server cannot be had, or has no such tool.
        """
        session = self._current()
        try:
            await session.started()
        except EngineError:
            self._leave(session)
            raise
        if tool not in session.tools:
            raise EngineError(f"the server {self.label!r} has no tool {tool!r} that can be used")
        return session.tools[tool]

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool.

        Raises:
            EngineError: the call failed, took too long, or the server cannot be had.
        """
        session = self._current()
        try:
            await session.started()
            with session.in_use():
                return await self._called(session, tool, arguments)
        except EngineError:
            if session.has_failed:
                self._leave(session)
            raise

    async def aclose(self) -> None:
        """End the server; harmless when done twice."""
        self._is_closed = True
        if self._session is not None:
            self._leave(self._session)
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
            if not session.has_failed:  # what the server says of this call
                problem = f"the tool failed: {error.message}"
            cause: BaseException = error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            session.has_failed = True  # its own scope was cancelled, not this request
            cause = error
        except Exception as error:  # noqa: BLE001 - whatever a server makes the SDK raise
            session.has_failed = True
            cause = error
        log.warning("a call of the server %r failed:\n%s", self.label, trace_of(cause))
        raise EngineError(problem) from cause

    def _current(self) -> "_Session":
        """Return the session that takes calls; begin one if there is none."""
        if self._is_closed:
            raise EngineError(f"the server {self.label!r} was closed")
        if self._session is not None and self._session.has_failed:
            self._leave(self._session)
        if self._session is None:
            self._session = _Session(self.label, self.server)
        return self._session

    def _leave(self, session: "_Session") -> None:
        """Use a session for no more calls; it ends when the last one has."""
        if self._session is session:
            self._session = None
        self._ending.add(session)
        session.task.add_done_callback(lambda _: self._ending.discard(session))
        session.end_when_idle()


class _Session:
    """A server that runs, or is being started, in a task of its own."""

    def __init__(self, label: str, server: McpServer) -> None:
        self.client: Client
        self.tools: dict[str, Tool] = {}
        self.has_failed = False
        self._label = label
        self._server = server
        self._num_calls = 0
        self._is_left = False
        self._end = asyncio.Event()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._keep(), name=f"mcp-{label}")

    async def started(self) -> None:
        """Wait until calls can be made.

        Raises:
            EngineError: the server cannot be had.
        """
        await asyncio.wait([self._started])
        self._started.result()

    def in_use(self) -> "_InUse":
        """Keep the session for the length of a call."""
        return _InUse(self)

    def note(self, num_calls: int) -> None:
        """Count a call that begins, or ended."""
        self._num_calls += num_calls
        self._end_if_due()

    def end_when_idle(self) -> None:
        """Take no more calls."""
        self._is_left = True
        self._end_if_due()

    async def aclose(self) -> None:
        """End now."""
        self._end.set()
        if not self._started.done():
            self.task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self.task])

    def _end_if_due(self) -> None:
        if self._is_left and not self._num_calls:
            self._end.set()

    async def _keep(self) -> None:
        """Start the server, and keep it until it is told to end."""
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
                failure = EngineError(f"the server {self._label!r} cannot be had")
                failure.__cause__ = error
                self._started.set_exception(failure)
                self._started.exception()  # not every request that asked is still there to see it


class _InUse:
    """The length of a call."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.note(1)

    def __exit__(self, *_: object) -> None:
        self._session.note(-1)


def _target(server: McpServer) -> str | StdioServerParameters:
    if server.url:
        return server.url
    command, *arguments = server.command
    environ = {name: os.environ[name] for name in server.env if name in os.environ}
    return StdioServerParameters(command=command, args=arguments, env=environ)


async def _listed(client: Client, server: McpServer) -> dict[str, Tool]:
    """Return the tools that may be used, of those that a server has."""
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
