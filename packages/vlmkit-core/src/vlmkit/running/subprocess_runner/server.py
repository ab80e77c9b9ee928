"""The child's end: answers the requests of its caller with a runner of this process.

All of it runs in one event loop, beside the threads of the runner.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, BinaryIO

from vlmkit.errors import EngineError, RequestCancelled, RequestError, VlmkitError, WireError
from vlmkit.interfaces.observer import Observer, StepFacts
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.kit.traces import trace_of
from vlmkit.running.subprocess_runner.messages import (
    CODEC,
    Abort,
    Accepted,
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
    malformed_number,
)
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import TextDelta
from vlmkit.types.demand import Demand
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.frames import Buffer, Frame, FrameSplitter, frame_parts

log = logging.getLogger(__name__)

STATE_S = 0.05  # between two looks at the state
NEWS_S = 0.001  # between two frames of entries; few engines compute steps as fast
READ_BYTES = 2**16  # what a pipe holds
END_S = 5.0  # for ends of requests to be sent before the process exits


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


class ChildServer:
    """Serves one caller until it closes the runner or is gone.

    Args:
        runner: answers the requests.
        requests: the pipe of messages from the caller, unbuffered.
        answers: the pipe of messages to the caller.
        steps: collects steps for the caller; None if it has no use for them.
    """

    def __init__(
        self,
        runner: Runner,
        requests: BinaryIO,
        answers: BinaryIO,
        steps: StepRecorder | None = None,
    ) -> None:
        self._runner = runner
        self._requests = requests
        self._answers = answers
        self._steps = steps
        self._open: dict[int, _OpenRequest] = {}
        self._entries: list[Accepted | TokenEntry | Entry] = []
        self._flushed_s = 0.0
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._writing = threading.Lock()
        self._state: State | None = None

    async def serve(self) -> None:
        """Serve, and return when the process has to exit."""
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        self._runner.on_failure(lambda _: self._from_thread(self._is_over.set))
        threading.Thread(target=self._read, name="vlmkit-requests", daemon=True).start()
        watch = self._loop.create_task(self._watch_state())
        await self._is_over.wait()
        watch.cancel()
        for request in self._open.values():
            request.may_flow.set()  # its caller reads no more, and gets the last chunks at once
        answers = [each.task for each in self._open.values() if each.task is not None]
        if answers:
            await asyncio.wait(answers, timeout=END_S)
        self._flush()

    def _read(self) -> None:
        """Read messages in a thread, so that no decision waits for a turn of the event loop."""
        splitter = FrameSplitter()
        try:
            while content := self._requests.read(READ_BYTES):
                messages = []
                for message in map(_decoded, splitter.feed(content)):
                    if isinstance(message, Proceed):
                        self._decide(message)
                    else:
                        messages.append(message)
                if messages:
                    self._from_thread(self._handle_all, messages)
        except (OSError, WireError, MemoryError) as error:
            log.debug("no more messages are read:\n%s", trace_of(error))
        finally:
            self._from_thread(self._is_over.set)

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
        elif isinstance(message, Drain):
            self._start(message.number, self._drain(message))
        elif isinstance(message, Close):
            self._start(-1, self._close())
        elif isinstance(message, Malformed):
            self._send(message)

    def _start(self, number: int, work: Any) -> None:
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

    async def _answer(self, message: Submit) -> None:
        number, request = message.number, self._open[message.number]

        def admit(demand: Demand) -> None:
            self._write(frame_parts(CODEC.encode(Demanded(number, demand))))
            if not request.decisions.get():
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

    def _write(self, parts: Iterable[Buffer]) -> None:
        """Write whole frames; may be called in any thread."""
        try:
            with self._writing:
                self._answers.writelines(parts)
                self._answers.flush()
        except OSError:  # the caller is gone
            self._from_thread(self._is_over.set)

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
            self._send_state()
            await asyncio.sleep(STATE_S)

    def _send_state(self) -> None:
        state = State(self._runner.stats(), self._runner.is_full)
        if state != self._state:
            self._state = state
            self._send(state)
        if self._steps is not None and (steps := self._steps.take()):
            self._send(Steps(steps))


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
