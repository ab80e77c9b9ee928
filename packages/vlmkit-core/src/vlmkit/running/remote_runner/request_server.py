"""The answering end: answers the requests of a caller in another process with a runner of this one.

All of it runs in one event loop, beside the threads of the runner. The transport is not its part:
it takes bytes and returns bytes.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from vlmkit.errors import (
    EngineError,
    QueueFull,
    RequestCancelled,
    RequestError,
    VlmkitError,
    WireError,
)
from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.observer import Observer, StepFacts
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.kit.traces import trace_of
from vlmkit.running.remote_runner.messages import (
    CODEC,
    Abort,
    Accepted,
    Blocks,
    Close,
    Demanded,
    Detokenize,
    Detokenized,
    Drain,
    Drained,
    Entry,
    Flow,
    Malformed,
    News,
    Proceed,
    Refused,
    State,
    Steps,
    Submit,
    TokenEntry,
    Tokenize,
    Tokenized,
    frame_limits,
    malformed_number,
)
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import TextDelta
from vlmkit.types.demand import Demand
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.frames import (
    DEFAULT_LIMITS,
    Buffer,
    Frame,
    FrameLimits,
    FrameSplitter,
    frame_parts,
)

log = logging.getLogger(__name__)

STATE_S = 0.05  # between two looks at the state
NEWS_S = 0.001  # between two frames of entries; few engines compute steps as fast
MAX_SENT_BLOCKS = 1000  # of one message: about 200 kB, so that answers wait a few milliseconds
END_S = 5.0  # for ends of requests to be sent before the connection ends


class StepRecorder(Observer):
    """Collects the steps of the engine for the caller."""

    def __init__(self) -> None:
        self._steps: list[StepFacts] = []

    def step(self, step: StepFacts, at_s: float) -> None:  # noqa: ARG002
        """Keep a step."""
        self._steps.append(step)

    def take(self) -> tuple[StepFacts, ...]:
        """Return the steps since the last call."""
        taken, self._steps = self._steps, []
        return tuple(taken)


class BlockRecorder(Observer):
    """Passes the cache events of the engine on to the caller, whose reading sets the pace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._send: Callable[[object], None] | None = None
        self._early: list[Blocks] = []  # from before there is a way to send them

    def blocks(self, change: CacheChange, at_s: float) -> None:  # noqa: ARG002
        """Send a change in pieces."""
        with self._lock:
            for piece in _pieces(change):
                if self._send is None:
                    self._early.append(piece)
                else:
                    self._send(piece)

    def start(self, send: Callable[[object], None]) -> None:
        """Send what there is, and each further change, by a function for any thread."""
        with self._lock:
            self._send = send
            for piece in self._early:
                send(piece)
            self._early.clear()


def _pieces(change: CacheChange) -> list[Blocks]:
    """Return a change as messages of bounded size, which give the same when applied in order."""
    size, removed, stored = MAX_SENT_BLOCKS, change.removed, change.stored
    cleared = [CacheChange(is_cleared=True)] if change.is_cleared else []
    removals = [CacheChange(removed=removed[i : i + size]) for i in range(0, len(removed), size)]
    additions = [CacheChange(stored[i : i + size]) for i in range(0, len(stored), size)]
    return [Blocks(piece) for piece in (*cleared, *removals, *additions)]


class _OpenRequest:
    """A request that runs here.

    Attributes:
        has_ended: whether its end was sent while it runs.
        is_aborted: whether it was aborted; its last chunks are sent, whatever its reader does.
    """

    def __init__(self) -> None:
        self.has_ended = self.is_aborted = False
        self.task: asyncio.Task[None] | None = None
        self.stream: AnswerStream | None = None
        self.decisions: SimpleQueue[bool] = SimpleQueue()
        self.may_flow = asyncio.Event()
        self.may_flow.set()

    def abort(self) -> None:
        """End the request: by its stream, or by cancelling its preparation."""
        self.is_aborted = True
        self.decisions.put(False)
        self.may_flow.set()
        if self.stream is not None:
            self.stream.abort()
        elif self.task is not None:
            self.task.cancel()


@dataclass(frozen=True, kw_only=True)
class CallerLimits:
    """What a caller may do; the defaults are for a caller that owns the process.

    Attributes:
        is_owner: whether it may drain and close the runner.
        max_open: the most requests and calls that it may have open at once; None for any number.
        decision_s: time in seconds for its decision about a demand; None for no limit.
        max_message_bytes: the most bytes of a message that it may send; None for any number.
        heartbeat_s: time in seconds after which the state is sent although it has not changed; None
            if the caller needs no sign of life.
        is_alone: whether the connection is for one request or call, and ends with it.
    """

    is_owner: bool = True
    max_open: int | None = None
    decision_s: float | None = None
    max_message_bytes: int | None = None
    heartbeat_s: float | None = None
    is_alone: bool = False


OWNER = CallerLimits()


async def _at_once() -> None:
    """Wait for nothing."""


class RequestServer:
    """Serves one caller until it closes the runner or is gone.

    Args:
        runner: answers the requests.
        write: takes the parts of whole frames for the caller; called in any thread, and must not
            wait for the caller if that is not the owner.
        steps: collects steps for the caller; None if it has no use for them.
        limits: what the caller may do.
        room: waits until the caller has read most of what was written; chunks wait for it.
    """

    def __init__(
        self,
        runner: Runner,
        write: Callable[[Iterable[Buffer]], None],
        steps: StepRecorder | None = None,
        limits: CallerLimits = OWNER,
        room: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self._runner = runner
        self._write = write
        self._steps = steps
        self._limits = limits
        self._room = room
        self._splitter = FrameSplitter(_frames_of(limits))
        self._open: dict[int, _OpenRequest] = {}
        self._entries: list[Accepted | TokenEntry | Entry] = []
        self._flushed_s = 0.0
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._state: State | None = None
        self._state_s = 0.0  # when it was sent
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()

    @property
    def num_open(self) -> int:
        """Number of open requests and calls."""
        return len(self._open)

    @property
    def is_within_frame(self) -> bool:
        """Whether only a part of a message has arrived."""
        return self._splitter.is_within_frame

    async def serve(self) -> None:
        """Serve, and return when the connection has to end; every request has ended then."""
        self._runner.on_failure(lambda _: self.end())
        watch = None if self._limits.is_alone else self._loop.create_task(self._watch_state())
        try:
            await self._is_over.wait()
        finally:
            if watch is not None:
                watch.cancel()
        for number, request in self._open.items():
            request.may_flow.set()  # its caller reads no more, and gets the last chunks at once
            if not self._limits.is_owner:
                self._refuse(number, EngineError("the process ends", hint="try again later"))
                request.has_ended = True
                request.abort()
        answers = [each.task for each in self._open.values() if each.task is not None]
        if answers:
            await asyncio.wait(answers, timeout=END_S)
        self._flush()

    def end(self) -> None:
        """Have :meth:`serve` return; may be called in any thread."""
        self._from_thread(self._is_over.set)

    def feed(self, content: Buffer) -> None:
        """Take bytes of the caller; called in one thread, or in the event loop.

        A thread of its own delivers decisions about demands without a turn of the event loop.

        Raises:
            WireError: a message is malformed, and the connection useless.
        """
        messages = []
        for message in map(_decoded, self._splitter.feed(content)):
            if isinstance(message, Proceed):
                self._decide(message)
            else:
                messages.append(message)
        if messages:
            self._from_thread(self._handle_all, messages)

    def _from_thread(self, work: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(work, *args)

    def _decide(self, message: Proceed) -> None:
        if (request := self._open.get(message.number)) is not None:
            request.decisions.put(message.is_admitted)

    def _handle_all(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        if isinstance(message, Submit):
            self._start(message.number, self._answer(message))
        elif isinstance(message, Abort | Flow):
            if (request := self._open.get(message.number)) is not None:
                _tell(request, message)
        elif isinstance(message, Tokenize):
            self._start(message.number, self._tokenize(message))
        elif isinstance(message, Detokenize):
            self._start(message.number, self._detokenize(message))
        elif isinstance(message, Malformed):
            self._send(message)
            self._end_if_alone()
        elif self._limits.is_owner:
            self._handle_owner(message)

    def _handle_owner(self, message: Any) -> None:
        if isinstance(message, Drain):
            self._start(message.number, self._drain(message))
        elif isinstance(message, Close):
            self._start(-1, self._close())

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        most = self._limits.max_open
        if number in self._open or (most is not None and len(self._open) >= most):
            work.close()
            if number in self._open:
                log.warning("a caller used the number of an open request again")
                self._is_over.set()
            else:
                self._send(Refused(number, QueueFull(f"a caller has {most} open requests")))
            return
        request = self._open[number] = _OpenRequest()
        request.task = self._loop.create_task(self._guarded(number, work))

    async def _guarded(self, number: int, work: Any) -> None:
        """Run a request or a call, and send the error with which it ends."""
        try:
            await work
        except asyncio.CancelledError:
            self._refuse(number, RequestCancelled())
        except VlmkitError as error:
            self._refuse(number, error)
        except Exception as error:  # noqa: BLE001 - a runner may raise anything
            log.error("a request failed:\n%s", trace_of(error))  # noqa: TRY400
            self._refuse(number, EngineError(f"the model failed: {type(error).__name__}"))
        finally:
            del self._open[number]
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        if self._limits.is_alone:
            self._is_over.set()

    async def _answer(self, message: Submit) -> None:
        number, request = message.number, self._open[message.number]

        def admit(demand: Demand) -> None:
            self._write(frame_parts(CODEC.encode(Demanded(number, demand))))
            try:
                is_admitted = request.decisions.get(timeout=self._limits.decision_s)
            except Empty:
                raise EngineError("the caller did not decide on the request in time") from None
            if not is_admitted:
                raise RequestError("the request was not admitted")

        stream = request.stream = await self._runner.asubmit(
            message.request, admit if message.asks_admission else None
        )
        prompt_token_ids = tuple(stream.prompt_token_ids)
        self._add(
            Accepted(number, stream.num_choices, prompt_token_ids, stream.usage, stream.timings)
        )
        self._state = None  # the caller counts this request itself until the next state
        await self._pass_on(number, request, stream)

    async def _pass_on(self, number: int, request: _OpenRequest, stream: AnswerStream) -> None:
        """Send the chunks of an answer as entries."""
        is_first, num_open, num_reasoning = True, stream.num_choices, 0
        while num_open and (chunks := await stream.next_chunks()) and not request.has_ended:
            if is_first or not all(map(_is_light, chunks)):
                is_first = False
                num_open -= sum([each.finish_reason is not None for each in chunks])
                usage = stream.usage
                num_reasoning = usage.reasoning_tokens
                self._add(Entry(number, tuple(chunks), usage, stream.timings))
            else:
                if not all(map(_is_text, chunks)):
                    num_reasoning = stream.usage.reasoning_tokens
                self._add(
                    *[
                        TokenEntry(number, each.index, each.deltas, each.samples, num_reasoning)
                        for each in chunks
                    ]
                )
            if self._loop.time() < self._flushed_s + NEWS_S:
                await self._flushed.wait()  # the chunks of this time are read together
            if not request.may_flow.is_set():
                await request.may_flow.wait()
            await self._room()

    async def _tokenize(self, message: Tokenize) -> None:
        tokens = await self._runner.atokenize(message.request)
        self._send(Tokenized(message.number, tokens))

    async def _detokenize(self, message: Detokenize) -> None:
        text = await asyncio.to_thread(self._runner.detokenize, message.token_ids)
        self._send(Detokenized(message.number, text))

    async def _drain(self, message: Drain) -> None:
        is_empty = await asyncio.to_thread(self._runner.drain, message.timeout_s)
        self._send(Drained(message.number, is_empty))

    async def _close(self) -> None:
        try:
            await asyncio.to_thread(self._runner.close)
        finally:
            self._is_over.set()

    # What is sent.

    def _add(self, *entries: Accepted | TokenEntry | Entry) -> None:
        """Send entries with the others of this turn, or of the next :data:`NEWS_S`."""
        self._entries += entries
        if self._flushed.is_set():
            self._flushed.clear()
            self._loop.call_at(self._flushed_s + NEWS_S, self._flush)

    def _flush(self) -> None:
        self._flushed_s = self._loop.time()
        self._write(self._packed_entries())
        self._flushed.set()

    def _send(self, message: object) -> None:
        """Send a message at once, after all entries so far."""
        self._write(self._packed_entries() + frame_parts(CODEC.encode(message)))

    def _packed_entries(self) -> list[Buffer]:
        entries, self._entries = self._entries, []
        if not entries:
            return []
        try:
            return frame_parts(CODEC.encode(News(tuple(entries))))
        except NotSerializable:
            return self._packed_alone(entries)

    def _packed_alone(self, entries: Iterable[Accepted | TokenEntry | Entry]) -> list[Buffer]:
        """Return a frame for each entry; a request fails at one that cannot be sent."""
        parts: list[Buffer] = []
        failed: set[int] = set()
        for entry in entries:
            if entry.number in failed:
                continue
            try:
                parts += frame_parts(CODEC.encode(News((entry,))))
            except NotSerializable as error:
                failed.add(entry.number)
                if (request := self._open.get(entry.number)) is not None:
                    request.has_ended = True
                    request.abort()
                refused = Refused(entry.number, EngineError(f"the answer holds {error}"))
                parts += frame_parts(CODEC.encode(refused))
        return parts

    def _refuse(self, number: int, error: VlmkitError) -> None:
        request = self._open[number]
        if request.has_ended:
            return
        stream = request.stream
        if stream is None:
            self._send(Refused(number, error))
        else:
            self._send(Refused(number, error, stream.usage, stream.timings))

    async def _watch_state(self) -> None:
        while True:
            beat_s = self._limits.heartbeat_s
            if beat_s is not None and self._loop.time() > self._state_s + beat_s:
                self._state = None
            self._send_state()
            await asyncio.sleep(STATE_S)

    def _send_state(self) -> None:
        state = State(self._runner.stats(), self._runner.is_full)
        if state != self._state:
            self._state = state
            self._state_s = self._loop.time()
            self._send(state)
        if self._steps is not None and (steps := self._steps.take()):
            self._send(Steps(steps))


def _frames_of(limits: CallerLimits) -> FrameLimits:
    most = limits.max_message_bytes
    return DEFAULT_LIMITS if most is None else frame_limits(most)


def _is_light(chunk: Chunk) -> bool:
    """Whether a chunk has text and tokens alone."""
    return chunk.finish_reason is None and chunk.embedding is None and not chunk.places


def _is_text(chunk: Chunk) -> bool:
    """Whether a chunk has more text, so that its token is none of reasoning."""
    return len(chunk.deltas) == 1 and type(chunk.deltas[0]) is TextDelta


def _decoded(frame: Frame) -> Any:
    """Return a message; that it is malformed if an answer can say so.

    Raises:
        WireError: it is malformed in another way.
    """
    try:
        return CODEC.decode(frame)
    except WireError:
        if (number := malformed_number(frame.head)) is None:
            raise
        return Malformed(number)


def _tell(request: _OpenRequest, message: Abort | Flow) -> None:
    if isinstance(message, Abort):
        request.abort()
    elif not message.is_paused:
        request.may_flow.set()
    elif not request.is_aborted:  # a pause may cross the abort on its way
        request.may_flow.clear()
