"""The services of a worker: they carry the messages of gateways to a runner, and its answers back.

It knows neither the model nor the address. :mod:`vlmkit_grpc.worker` starts and ends it.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from typing import Any

import grpc

from vlmkit import __version__
from vlmkit.errors import WireError
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.runner_tokens import token_table
from vlmkit.kit.traces import trace_of
from vlmkit.running.remote_runner.messages import Started, message_parts, protocol
from vlmkit.running.remote_runner.request_server import CallerLimits, RequestServer
from vlmkit_grpc.outbox import Outbox
from vlmkit_grpc.pieces import pieces_of
from vlmkit_grpc.protocol.worker_pb2 import DescribeReply, DrainReply, Part, Prompt, WatchReply
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from vlmkit_grpc.sent_prompts import RecentPrompts, check_prompt
from vlmkit_grpc.settings import WorkerSettings
from vlmkit_grpc.watch import CacheObserver, replies

log = logging.getLogger(__name__)

MAX_DRAIN_S = 86_400.0
HEARTBEAT_S = 1.0
"""The longest time in which a session sends nothing."""


class WorkerService(WorkerServicer):
    """Answers gateways with a runner.

    Args:
        runner: answers the requests.
        model_digest: of the files of its model, in hex; empty if it has none.
        settings: limits of what gateways may do.
        cache: collects the changes of the prefix cache; None if no gateway may watch them.
        on_drain: called when a gateway or an operator drains the worker, with the time in seconds
            for running requests; returns whether all ended.
    """

    def __init__(
        self,
        runner: Runner,
        model_digest: str,
        settings: WorkerSettings,
        cache: CacheObserver | None,
        on_drain: Callable[[float], "asyncio.Future[bool]"],
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._cache = cache
        self._is_draining = self._is_over = False
        self._on_drain = on_drain
        table = list(token_table(runner))
        self._started = Started(runner.facts, b"".join(table), tuple(accumulate(map(len, table))))
        self.description = DescribeReply(
            protocol=protocol(),
            version=__version__,
            model=runner.facts.name,
            model_digest=model_digest,
            vocabulary_digest=vocabulary_digest(self._started),
            precision=runner.facts.limits.precision,
        )
        self._servers: set[RequestServer] = set()
        self._sessions: set[Outbox] = set()
        self._prompts = RecentPrompts()

    @property
    def num_open(self) -> int:
        """Number of open requests and calls of all gateways."""
        return sum(server.num_open for server in self._servers)

    @property
    def num_streams(self) -> int:
        """Number of open sessions, and of calls for single requests."""
        return len(self._servers)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        add_WorkerServicer_to_server(self, server)

    def note_drain(self) -> None:
        """Report to watchers that the worker drains."""
        self._is_draining = True

    async def drained(self, timeout_s: float) -> bool:
        """Refuse new requests, and return whether all running ones ended in time."""
        return await asyncio.to_thread(self._runner.drain, timeout_s)

    def end(self) -> None:
        """End all calls, each with an error for its open requests."""
        self._is_over = True
        for server in self._servers:
            server.end()

    async def Describe(self, request: Any, context: Any) -> DescribeReply:  # noqa: ARG002, N802
        """State which model the worker runs."""
        return self.description

    async def Facts(self, request: Any, context: Any) -> AsyncIterator[Part]:  # noqa: ARG002, N802
        """Send the facts of the runner and the bytes of all tokens."""
        frame = message_parts(self._started, self._settings.max_message_bytes)
        for piece in pieces_of(frame):
            yield piece

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: ARG002, N802
        """Answer the requests of one gateway."""
        await self._serve(context, is_alone=False)

    async def Answer(self, request_iterator: Any, context: Any) -> None:  # noqa: ARG002, N802
        """Answer one request."""
        await self._serve(context, is_alone=True)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[WatchReply]:  # noqa: N802
        """Send the load and, if asked, the changes of the prefix cache."""
        if request.with_cache and self._cache is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "worker.cache_events is not set"
            )
        cache = self._cache if request.with_cache else None
        async for reply in replies(
            self._runner, cache, lambda: self._is_draining, lambda: self._is_over
        ):
            yield reply

    async def Drain(self, request: Any, context: Any) -> DrainReply:  # noqa: ARG002, N802
        """Refuse new requests, wait for the running ones, and end the worker."""
        return DrainReply(
            is_empty=await self._on_drain(min(max(0.0, request.timeout_s), MAX_DRAIN_S))
        )

    async def _serve(self, context: Any, *, is_alone: bool) -> None:
        """Serve one call until the gateway ends it, or breaks the protocol."""
        settings = self._settings
        outbox = Outbox(context, settings.stall_timeout_s)
        server = RequestServer(
            self._runner,
            outbox.write,
            limits=CallerLimits(
                is_owner=False,
                max_open=settings.max_open_requests,
                decision_s=settings.decision_timeout_s,
                max_message_bytes=settings.max_message_bytes,
                heartbeat_s=HEARTBEAT_S,
                is_alone=is_alone,
            ),
            room=outbox.room,
        )
        self._servers.add(server)
        if not is_alone:
            self._join(outbox)
        serving = asyncio.create_task(server.serve())
        sending = asyncio.create_task(outbox.send())
        reading = asyncio.create_task(self._read(context, server, outbox))
        try:
            await asyncio.wait({serving, sending, reading}, return_when=asyncio.FIRST_COMPLETED)
            status = _status_of(sending) or _status_of(reading)
            if not sending.done():
                server.end()
                await serving
                outbox.close()
                await asyncio.wait({sending})
                status = status or _status_of(sending)
        finally:
            reading.cancel()
            sending.cancel()
            outbox.drop()
            server.end()
            await _ended(serving, reading, sending)
            self._servers.discard(server)
            self._sessions.discard(outbox)
        if status is not None:
            await context.abort(*status)

    def _join(self, outbox: Outbox) -> None:
        """Show a gateway the recent prompts, and from now on those of the others."""
        for prompt in self._prompts:
            outbox.show(prompt)
        self._sessions.add(outbox)

    def _show(self, prompt: Prompt, sender: Outbox) -> None:
        """Show a prompt of one gateway to the others.

        Raises:
            WireError: it is malformed.
        """
        check_prompt(prompt)
        self._prompts.add(prompt)
        for outbox in self._sessions - {sender}:
            outbox.show(prompt)

    async def _read(self, context: Any, server: RequestServer, outbox: Outbox) -> None:
        """Give a server what the gateway sends, until it sends no more.

        Raises:
            WireError: a message is malformed or too large.
            TimeoutError: a message was begun and not finished.
        """
        while True:
            limit_s = self._settings.stall_timeout_s if server.is_within_frame else None
            async with asyncio.timeout(limit_s):
                part = await context.read()
            if part is grpc.aio.EOF:
                return
            if part.HasField("prompt"):
                self._show(part.prompt, outbox)
            server.feed(part.content)


_STALLED = (grpc.StatusCode.DEADLINE_EXCEEDED, "the call stalled")


def _status_of(task: "asyncio.Task[None]") -> tuple[grpc.StatusCode, str] | None:
    """Return the status for the gateway with which a task ended a call; None if it did not."""
    if not task.done() or task.cancelled() or (error := task.exception()) is None:
        return None
    if isinstance(error, WireError):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, TimeoutError):
        return _STALLED
    log.debug("a gateway has disconnected:\n%s", trace_of(error))
    return None


async def _ended(*tasks: "asyncio.Task[None]") -> None:
    """Wait for tasks, whatever becomes of them; also when the caller is cancelled."""
    waiting = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await waiting
        raise


def vocabulary_digest(started: Started) -> str:
    """Return the SHA-256 of the bytes of all tokens, in hex."""
    digest = hashlib.sha256(started.token_bytes)
    for end in started.token_ends:
        digest.update(end.to_bytes(8, "big"))
    return digest.hexdigest()
