"""The server of the API contract: the API under test in front of a runner with a fixed script.

Requests reach the whole application, with its admission, keys and error handlers, without a socket.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from litestar import Litestar

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.runner import Admit, RunnerFacts
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.completion import Choice, Chunk, Completion, FinishReason, Timings, Usage
from vlmkit.types.delta import (
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.app import create_app
from vlmkit_server.interfaces.api import Api
from vlmkit_server.settings.server import ServerSettings

MODEL = "scripted"
WORDS = ("a ", "small", " ", "bird", "\n\n", "sits ", "here")
CALLED = "zx9called"
"""The tool that an answer calls."""

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Sent:
    """A request of a client.

    Attributes:
        path: the route's path.
        body: the body, as JSON values; None for a request without one.
        method: the HTTP method.
    """

    path: str
    body: Mapping[str, Any] | None = None
    method: str = "POST"

    def with_field(self, name: str, value: Any) -> "Sent":
        """Return the request with another field in its body."""
        return Sent(self.path, {**(self.body or {}), name: value}, self.method)


@dataclass
class Received:
    """A response.

    Attributes:
        status: the HTTP status; 0 before the response begins.
        headers: its headers, by lower-case name.
        pieces: its body, as it was sent.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)


class ScriptedStream:
    """Answers with a script.

    Args:
        script: what the answer has, and how it ends.
        words: the text of the answer, in pieces.

    Attributes:
        is_aborted: whether the answer was aborted.
    """

    num_choices = 1
    prompt_token_ids = (1, 2, 3)

    def __init__(self, script: "Script", words: Seq[Any]) -> None:
        self.is_aborted = False
        self._script = script
        self._words = list(words)
        self._chunks = list(script.chunks(self._words))
        self._num_read = 0
        self._is_over = asyncio.Event()

    @property
    def usage(self) -> Usage:
        """The tokens so far: one for each chunk."""
        return Usage(len(self.prompt_token_ids), self._num_read)

    @property
    def timings(self) -> Timings:
        """No time at all."""
        return Timings()

    @property
    def reasons(self) -> Seq[FinishReason]:
        """The reason of the one choice."""
        is_over = self._num_read == len(self._chunks)
        return [self._script.finish_reason] if is_over else []

    async def next_chunks(self) -> list[Chunk]:
        """Return the next chunks."""
        await asyncio.sleep(0)
        if self._num_read and self._script.late_error is not None:
            raise self._script.late_error
        if self._num_read and self._script.holds:
            await self._is_over.wait()
        if self.is_aborted:
            return []
        start, self._num_read = self._num_read, self._num_read + self._script.num_chunks
        self._num_read = min(self._num_read, len(self._chunks))
        return self._chunks[start : self._num_read]

    async def aresult(self) -> Completion:
        """Return the whole answer."""
        while await self.next_chunks():
            pass
        deltas = [delta for chunk in self._chunks for delta in chunk.deltas]
        parts = text_of(deltas), reasoning_of(deltas), tool_calls_of(deltas)
        choice = Choice(*parts, finish_reason=self._script.finish_reason)
        return Completion([choice], self.usage, self.timings, self.prompt_token_ids)

    def abort(self) -> None:
        """End the answer."""
        self.is_aborted = True
        self._is_over.set()

    def result(self) -> Completion:
        """Return the whole answer; not used by servers."""
        return asyncio.run(self.aresult())

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the words; not used by servers."""
        return iter(())

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield the words."""
        while chunks := await self.next_chunks():
            for chunk in chunks:
                yield chunk


@dataclass(frozen=True, kw_only=True)
class Script:
    """What an answer has, and how it ends.

    Attributes:
        late_error: is raised after the first chunks of an answer, if it is given.
        holds: whether an answer stops after the first chunks until it is aborted.
        calls: whether an answer ends with the call of a tool.
        thought: the reasoning before the text.
        words: the text after the question, in pieces; None for an answer without any text.
        num_deltas: pieces of text in each chunk.
        num_chunks: chunks that arrive at once.
        deltas: come after the words.
        finish_reason: why the answer ends.
    """

    late_error: VlmkitError | None = None
    holds: bool = False
    calls: bool = False
    thought: str = ""
    words: Seq[str] | None = WORDS
    num_deltas: int = 1
    num_chunks: int = 1
    deltas: Seq[Delta] = ()
    finish_reason: FinishReason = "stop"

    @property
    def call_deltas(self) -> tuple[ToolCallDelta, ...]:
        """The deltas of the calls."""
        return (ToolCallDelta(0, "call-1", CALLED, "{}"),) if self.calls else ()

    def chunks(self, words: Seq[Any]) -> Iterator[Chunk]:
        """Yield the chunks of an answer."""
        thoughts: list[Delta] = [ReasoningDelta(each) for each in self.thought.split("|") if each]
        deltas = [*thoughts, *map(TextDelta, words), *self.deltas]
        lots = [
            deltas[start : start + self.num_deltas]
            for start in range(0, len(deltas), self.num_deltas)
        ] or [[]]
        for number, lot in enumerate(lots, 1):
            is_last = number == len(lots)
            calls = self.call_deltas if is_last else ()
            yield Chunk(0, (*lot, *calls), finish_reason=self.finish_reason if is_last else None)


class ScriptedVector(ScriptedStream):
    """Answers with a vector of length one."""

    async def aresult(self) -> Completion:
        """Return the vector."""
        choice = Choice(finish_reason="stop", embedding=np.array([0.6, 0.8], np.float32))
        return Completion([choice], self.usage, self.timings, self.prompt_token_ids)


class ScriptedScores(ScriptedStream):
    """Answers with the scores of continuations, each less likely than the one before."""

    async def aresult(self) -> Completion:
        """Return a choice for each continuation."""
        choices = [
            Choice(finish_reason="stop", samples=[Sample(1, -float(number + 1))])
            for number in range(len(self._words))
        ]
        return Completion(choices, self.usage, self.timings, self.prompt_token_ids)


class ScriptedRunner:
    """Answers each request with its own text and the words of a script.

    Args:
        error: is raised when a request is submitted, if it is given.
        script: what the answers have, at first.

    Attributes:
        requests: the requests so far.
        streams: their answers.
        script: what the next answers have.
    """

    is_ready = True
    is_full = False
    facts = RunnerFacts(
        name=MODEL,
        limits=EngineLimits(
            vocab_size=256,
            max_sequence_tokens=4096,
            max_sequences=8,
            capacity_tokens=4096,
            max_chunk_tokens=512,
            hidden_size=2,
        ),
        modalities=("text", "image"),
        eos_ids=frozenset({0}),
        defaults=SamplingParams(max_tokens=64),
        bounds=PipelineSettings(),
    )

    def __init__(self, error: VlmkitError | None = None, script: Script | None = None) -> None:
        self.requests: list[Request] = []
        self.streams: list[ScriptedStream] = []
        self._error = error
        self.script = script or Script()

    def submit(self, request: Request, admit: Admit | None = None) -> ScriptedStream:
        """Start an answer: the text of the newest message, and the script; or a vector."""
        self.requests.append(request)
        if self._error is not None:
            raise self._error
        if admit is not None:
            admit(Demand(len(ScriptedStream.prompt_token_ids), answer_tokens=len(WORDS) + 1))
        if request.task == "embed":
            return ScriptedVector(self.script, ())
        if request.task == "score":
            return ScriptedScores(self.script, request.continuations)
        last = request.messages[-1].text if request.messages else request.text or ""
        words = self.script.words
        stream = ScriptedStream(self.script, () if words is None else [f"{last} ", *words])
        self.streams.append(stream)
        return stream

    async def asubmit(self, request: Request, admit: Admit | None = None) -> ScriptedStream:
        """Start an answer."""
        await asyncio.sleep(0)
        return self.submit(request, admit)

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return a prompt of three tokens."""
        self.requests.append(request)
        if self._error is not None:
            raise self._error
        return PromptTokens((1, 2, 3))

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the bytes of tokens as text."""
        return bytes(token_ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of a token."""
        return bytes([token_id])

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Never fail."""

    def stats(self) -> RunnerStats:
        """Return nothing but zeros."""
        return RunnerStats(0, 0, 0, 0, {}, {})

    def drain(self, timeout_s: float) -> bool:
        """Return at once: nothing runs."""
        return timeout_s >= 0

    def close(self) -> None:
        """Close nothing."""


class ApiServer:
    """The application with the API under test, in front of a scripted runner.

    Args:
        api: the API.
        runner: answers.
    """

    def __init__(self, api: Api, runner: ScriptedRunner) -> None:
        self.runner = runner
        self.app: Litestar = create_app({MODEL: runner}, ServerSettings(), apis={"tested": api})

    def send(self, *sent: Sent, gone_after: int | None = None) -> list[Received]:
        """Send requests at once, and return their responses.

        Args:
            sent: the requests.
            gone_after: the number of pieces of a response after which the client disconnects.
        """

        async def all_of() -> list[Received]:
            async with asyncio.timeout(TIMEOUT_S), self.app.lifespan():
                return list(
                    await asyncio.gather(*(self._response(each, gone_after) for each in sent))
                )

        return asyncio.run(all_of())

    async def _response(self, sent: Sent, gone_after: int | None) -> Received:
        content = b"" if sent.body is None else msgspec.json.encode(sent.body)
        received, gone, has_sent = Received(), asyncio.Event(), False

        async def receive() -> Any:
            nonlocal has_sent
            if not has_sent:
                has_sent = True
                return {"type": "http.request", "body": content, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                received.status = message["status"]
                received.headers.update(
                    (name.decode().lower(), value.decode()) for name, value in message["headers"]
                )
            elif body := message.get("body", b""):
                received.pieces.append(body)
                if gone_after is not None and len(received.pieces) >= gone_after:
                    gone.set()

        await self.app(_scope(sent, len(content)), receive, send)
        return received


def _scope(sent: Sent, num_bytes: int) -> Any:
    path, _, query = sent.path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "state": {},
    }
