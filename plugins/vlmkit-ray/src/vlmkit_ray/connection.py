"""The connection of a runner to the replicas of a model: a call of Ray Serve for each request.

All calls are made and read in one thread with an event loop. Ray Serve starts further threads, so
no process may be forked once this module has made a call.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from vlmkit.errors import EngineError, EngineFailed, QueueFull, RequestCancelled, VlmkitError
from vlmkit.kit.traces import trace_of
from vlmkit.running.fleet.cache_estimate import TokenSizes
from vlmkit.running.fleet.prompt_keys import (
    LARGE_BYTES,
    affinity_of,
    num_content_bytes,
    segments,
)
from vlmkit.running.remote_runner.messages import (
    Abort,
    Demanded,
    Detokenize,
    Entry,
    Lost,
    MessageReader,
    News,
    Refused,
    State,
    Submit,
    TokenEntry,
    Tokenize,
    message_parts,
)
from vlmkit.types.request import Request
from vlmkit_ray.calls import Call, Control, Route
from vlmkit_ray.model_replica import MAX_MESSAGE_BYTES
from vlmkit_ray.replica_statistics import ReplicaStatistics
from vlmkit_ray.serve_interface import method_of

log = logging.getLogger(__name__)

STATE_S = 1.0  # between two looks at the state of all replicas
STATE_TIMEOUT_S = 30.0
JOIN_S = 5.0


class ReplicaLostError(EngineError):
    """A replica was lost while it worked for a request."""


class _EngineEnded(Exception):  # noqa: N818 - it is no error of this process
    """The engine of a replica failed for good."""


@dataclass(eq=False)
class _Open:
    """An open call.

    Attributes:
        key: identifies it at its replica.
        message: with what it began.
        route: where it went.
        controls: frames that wait to be sent after it.
        task: reads its answer.
        sender: sends the frames that wait.
        is_aborted: whether its caller has aborted it.
    """

    key: str
    message: Any
    route: Route
    controls: list[bytes] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None
    sender: "asyncio.Task[None] | None" = None
    is_aborted: bool = False


class RayConnection:
    """One connection to the replicas with the same facts, as long as there are any.

    Args:
        handle: the deployment of the model.
        who: its name in errors.
        model: the digest of the facts of its replicas.
    """

    def __init__(self, handle: Any, who: str, model: str) -> None:
        self._handle = handle
        self._who = who
        self._model = model
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vlmkit-ray", daemon=True)
        self._is_over = asyncio.Event()
        self._open: dict[int, _Open] = {}
        self._sizes = TokenSizes()
        self._statistics = ReplicaStatistics()
        self._on_message: Callable[[Any], None]
        self._before_wait: Callable[[], None]
        self._on_end: Callable[[], None]
        self.reason = "it is connected"

    def send(self, message: Any) -> None:
        """Send a message without waiting; it is lost if the connection has ended.

        Raises:
            NotSerializable: it holds a value that cannot be sent, or is too large.
        """
        content = b"".join(message_parts(message, MAX_MESSAGE_BYTES))
        is_start = isinstance(message, Submit | Tokenize | Detokenize)
        work = self._start if is_start else self._control
        self._from_thread(work, message, content)

    def run(
        self,
        on_message: Callable[[Any], None],
        before_wait: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Deliver messages in one thread until the connection ends."""
        self._on_message, self._before_wait, self._on_end = on_message, before_wait, on_end
        self._thread.start()

    def close(self, timeout_s: float = 0.0) -> None:
        """End the connection, and wait at most so many seconds, or a few."""
        self._end("it is closed")
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(timeout_s, JOIN_S))

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._from_thread(self._is_over.set)

    def _from_thread(self, work: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(work, *args)

    def _run(self) -> None:
        with contextlib.closing(self._loop) as loop:
            loop.run_until_complete(self._serve())
        self._on_end()

    async def _serve(self) -> None:
        watch = asyncio.create_task(self._watch())
        await self._is_over.wait()
        tasks = [each.task for each in self._open.values() if each.task is not None]
        for task in (watch, *tasks):
            task.cancel()
        await asyncio.wait((watch, *tasks), timeout=JOIN_S)

    # One call.

    def _start(self, message: Any, content: bytes) -> None:
        opened = _Open(secrets.token_hex(8), message, Route(self._model))
        self._open[message.number] = opened
        opened.task = task = self._loop.create_task(self._answer(opened, content))
        opened.route.refuse = lambda: self._from_thread(task.cancel)

    def _control(self, message: Any, content: bytes) -> None:
        if (opened := self._open.get(message.number)) is None:
            return
        if isinstance(message, Abort):
            opened.is_aborted = True
            if not opened.route.replica and opened.task is not None:
                opened.task.cancel()
                return
        opened.controls.append(content)
        if opened.sender is None or opened.sender.done():
            opened.sender = self._loop.create_task(self._send_controls(opened))

    async def _send_controls(self, opened: _Open) -> None:
        """Send the frames of a call in their order; the call ends if they cannot be sent."""
        while opened.controls:
            content = b"".join(opened.controls)
            opened.controls.clear()
            control = Control(opened.key, content, opened.route.replica)
            try:
                await method_of(self._handle, "control", len(content)).remote(control)
            except Exception as error:  # noqa: BLE001 - Ray may raise anything
                log.debug("a message about a request was lost:\n%s", trace_of(error))
                if opened.task is not None:
                    opened.task.cancel()

    async def _answer(self, opened: _Open, content: bytes) -> None:
        """Make a call and deliver its answer; it ends with an error if it had no other end."""
        error: VlmkitError
        try:
            await self._route(opened)
            await self._read(opened, content)
            error = EngineError(f"{self._who}: a replica ended a call early")
        except asyncio.CancelledError:
            error = RequestCancelled() if opened.is_aborted else self._unreachable()
        except (RayActorError, _EngineEnded):
            self._lose(opened.route.replica)
            error = self._lost()
        except Exception as caught:  # noqa: BLE001 - Ray may raise anything
            error = self._error_of(caught)
        self._finish(opened)
        self._deliver(Refused(opened.message.number, error))

    async def _read(self, opened: _Open, content: bytes) -> None:
        answer = method_of(self._handle, "answer", len(content), is_stream=True)
        response = answer.remote(Call(opened.key, content, opened.route))
        reader = MessageReader(MAX_MESSAGE_BYTES)
        try:
            async for piece in response:
                for message in reader.feed(piece):
                    if isinstance(message, Refused) and isinstance(message.error, EngineFailed):
                        raise _EngineEnded  # its process ends
                    self._note(opened, message)
                    self._on_message(message)
                self._before_wait()
        except BaseException:
            response.cancel()
            raise

    async def _route(self, opened: _Open) -> None:
        """Compute what routing needs of a request, in another thread if it is large."""
        request = getattr(opened.message, "request", None)
        if not isinstance(request, Request):
            return
        if num_content_bytes(request) > LARGE_BYTES:
            parts = await asyncio.to_thread(segments, request)
        else:
            parts = segments(request)
        opened.route.parts, opened.route.sizes = parts, self._sizes.of(parts)
        opened.route.affinity = affinity_of(parts)

    def _note(self, opened: _Open, message: Any) -> None:
        """Learn from a message what routing needs."""
        if isinstance(message, Demanded):
            demand = message.demand
            self._sizes.learn(opened.route.parts, demand.text_tokens, demand.image_tokens)
        elif isinstance(message, News) and any(
            isinstance(entry, Entry | TokenEntry) for entry in message.entries
        ):
            opened.route.begin_answer()

    def _finish(self, opened: _Open) -> None:
        """Forget a call."""
        opened.route.end()
        if opened.sender is not None:
            opened.sender.cancel()
        if self._open.get(opened.message.number) is opened:
            del self._open[opened.message.number]

    def _lose(self, replica: str) -> None:
        """Fail all calls of a replica that was lost."""
        lost = {n: each for n, each in self._open.items() if each.route.replica == replica}
        for opened in lost.values():
            self._finish(opened)
            if opened.task is not None and opened.task is not asyncio.current_task():
                opened.task.cancel()
        if lost:
            log.error("%s: a replica with %d open requests was lost", self._who, len(lost))
            self._deliver(Lost(tuple(lost), self._lost()))

    def _deliver(self, message: Any) -> None:
        self._on_message(message)
        self._before_wait()

    def _lost(self) -> EngineError:
        return ReplicaLostError(f"{self._who}: a replica was lost", hint="try again")

    def _unreachable(self) -> EngineError:
        return EngineError(f"{self._who}: no replica could be asked", hint="try again later")

    def _error_of(self, error: Exception) -> VlmkitError:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, QueueFull | BackPressureError):
            return QueueFull(f"{self._who}: a replica is full")
        log.error("%s: a call failed:\n%s", self._who, trace_of(error))
        if isinstance(error, RayServeException):
            return self._unreachable()
        return EngineError(f"{self._who}: a call failed", hint="see the log of the replica")

    # The state of all replicas.

    async def _watch(self) -> None:
        """Deliver the state of all replicas, and end when all have other facts."""
        while True:
            try:
                response = self._handle.broadcast("state")
                answers = await response.results_async(
                    timeout_s=STATE_TIMEOUT_S, return_exceptions=True
                )
            except Exception as error:  # noqa: BLE001 - Ray may raise anything
                log.debug("no state of the replicas:\n%s", trace_of(error))
                answers = []
            states = [each for each in answers if isinstance(each, tuple)]
            if states and all(model != self._model for _, model, _ in states):
                self._end("its replicas run another model")
                return
            self._deliver_state(states)
            await asyncio.sleep(STATE_S)

    def _deliver_state(self, states: list[tuple[str, str, bytes]]) -> None:
        found: dict[str, State] = {}
        for name, model, frame in states:
            if model == self._model:
                (found[name],) = MessageReader(MAX_MESSAGE_BYTES).feed(frame)
        stats = self._statistics.of({name: state.stats for name, state in found.items()})
        is_full = bool(found) and all(state.is_full for state in found.values())
        self._deliver(State(stats, is_full))
