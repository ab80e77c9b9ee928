"""Sends one request to a server that speaks OpenAI's API, and records when each event arrives.

It does not decide when requests are sent. Times are of the monotonic clock, in seconds; all events
of one read of the connection have the same time.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

MAX_EVENT_BYTES = 2**22
MAX_ANSWER_BYTES = 2**28
MAX_ERROR_BYTES = 2**16
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_END = re.compile(rb"\r?\n\r?\n")


class AnswerError(Exception):
    """A request that failed.

    Args:
        name: the name of the error, by which it is counted.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Outcome(msgspec.Struct):
    """What became of one request; times are seconds after the start of the test.

    Attributes:
        number: the number of its conversation.
        turn: its number in the conversation, from 0.
        due_s: when it was to be sent; latencies count from here.
        sent_s: when it was sent.
        first_event_s: when the first event arrived; None if none did.
        first_reasoning_s: when the first reasoning arrived.
        first_text_s: when the first text or tool call arrived.
        end_s: when it ended, in whatever way.
        gaps_s: the times between events with reasoning, text or tool calls.
        num_events: how many such events arrived.
        prompt_tokens: as the server counts them; None if it sent no usage.
        completion_tokens: as the server counts them.
        cached_tokens: the tokens of the prompt that were cached.
        num_resent: how often it was sent again, since the server had closed the connection that an
            earlier request left open.
        error: the name of the error; None if it succeeded.
    """

    number: int
    turn: int
    due_s: float
    sent_s: float
    first_event_s: float | None = None
    first_reasoning_s: float | None = None
    first_text_s: float | None = None
    end_s: float = 0.0
    gaps_s: list[float] = []
    num_events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    num_resent: int = 0
    error: str | None = None


@dataclass
class _Answer:
    """An answer as its events arrive."""

    outcome: Outcome
    text: list[str] = field(default_factory=list)
    last_s: float = 0.0
    has_finished: bool = False
    is_done: bool = False

    def add(self, data: bytes, at_s: float) -> None:
        """Add the data of one event.

        Raises:
            AnswerError: it is an error, or no event of OpenAI's API.
        """
        outcome = self.outcome
        if outcome.first_event_s is None:
            outcome.first_event_s = at_s
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise AnswerError("invalid_event") from None
        if event.error is not None:
            raise AnswerError(f"error_event{_code(event.error)}")
        if event.usage is not None:
            outcome.prompt_tokens = event.usage.prompt_tokens
            outcome.completion_tokens = event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            outcome.cached_tokens = details.cached_tokens if details else None
        for choice in event.choices:
            self._add_delta(choice.delta, at_s)
            self.has_finished = self.has_finished or choice.finish_reason is not None

    def _add_delta(self, delta: _Delta, at_s: float) -> None:
        outcome = self.outcome
        reasoning = delta.reasoning_content or delta.reasoning
        text = delta.content
        if not reasoning and not text and not delta.tool_calls:
            return
        if reasoning and outcome.first_reasoning_s is None:
            outcome.first_reasoning_s = at_s
        if (text or delta.tool_calls) and outcome.first_text_s is None:
            outcome.first_text_s = at_s
        if text:
            self.text.append(text)
        if outcome.num_events:
            outcome.gaps_s.append(at_s - self.last_s)
        outcome.num_events += 1
        self.last_s = at_s


_decoder = msgspec.json.Decoder(_Event)


class Client:
    """Sends requests to one server.

    Args:
        url: the base URL of the API, which usually ends with ``/v1``.
        key: the API key; none is sent if it is empty.
        timeout_s: the time that a request has from its start to its last byte.
    """

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            headers=headers,
            auto_decompress=False,
            trace_configs=[trace],
        )
        self._start_s = time.perf_counter()

    def begin(self) -> None:
        """Start the clock: times are relative to this call."""
        self._start_s = time.perf_counter()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def now_s(self) -> float:
        """Return the time since the start of the test."""
        return time.perf_counter() - self._start_s

    async def models(self) -> list[str]:
        """Return the ids of the server's models.

        Raises:
            AnswerError: it has none, or is no such server.
        """
        try:
            async with self._session.get(f"{self.url}/models", allow_redirects=False) as response:
                content = await _limited(response, MAX_ERROR_BYTES * 16)
                if response.status != 200:
                    raise AnswerError(_status(response.status, content))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AnswerError(_connection(error)) from error
        try:
            return [each["id"] for each in msgspec.json.decode(content)["data"]]
        except (msgspec.DecodeError, TypeError, KeyError):
            raise AnswerError("no_list_of_models") from None

    async def request(
        self, number: int, turn: int, due_s: float, body: bytes
    ) -> tuple[Outcome, str]:
        """Send a request, read its answer, and return what became of it, and its text.

        Args:
            number: the number of its conversation.
            turn: its number in the conversation.
            due_s: when it was to be sent.
            body: the JSON body of a streamed chat completion.
        """
        outcome = Outcome(number, turn, due_s, self.now_s())
        answer = _Answer(outcome)
        try:
            while not await self._read(answer, body):
                outcome.num_resent += 1
        except AnswerError as failure:
            outcome.error = failure.name
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            outcome.error = _connection(error)
        outcome.end_s = self.now_s()
        return outcome, "".join(answer.text)

    async def _read(self, answer: _Answer, body: bytes) -> bool:
        """Send a request and read its answer; tell whether its connection was still open.

        A server may close a connection between two requests, and clients then send the second one
        again. Each attempt uses up a connection that an earlier request left open.

        Raises:
            AnswerError: it failed.
        """
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        reused: list[bool] = []
        try:
            response = await self._session.post(
                f"{self.url}/chat/completions",
                data=body,
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=reused,
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if reused:
                return False
            raise
        async with response:
            if response.status != 200:
                content = await _limited(response, MAX_ERROR_BYTES)
                raise AnswerError(_status(response.status, content))
            if response.content_type != "text/event-stream":
                raise AnswerError("no_event_stream")
            events = _Events()
            async for piece in response.content.iter_any():
                at_s = self.now_s()
                for data in events.fed(piece):
                    answer.add(data, at_s)
        if not answer.is_done and events.has_rest:
            raise AnswerError("truncated_event")
        if not answer.is_done and not answer.has_finished:
            raise AnswerError("early_end")
        return True


async def _note_reuse(_: object, context: SimpleNamespace, __: object) -> None:
    """Record that a request uses a connection that an earlier one left open."""
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.append(True)


class _Events:
    """Splits a stream of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""
        self._num_bytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether the stream so far ends within an event."""
        return bool(self._rest.strip())

    def fed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that a piece completes.

        Raises:
            AnswerError: an event or the answer is too long.
        """
        self._num_bytes += len(piece)
        *events, self._rest = _END.split(self._rest + piece)
        if len(self._rest) > MAX_EVENT_BYTES or self._num_bytes > MAX_ANSWER_BYTES:
            raise AnswerError("answer_too_long")
        for event in events:
            lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines).strip()


async def _limited(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the beginning of a body."""
    content = b""
    async for piece in response.content.iter_any():
        content += piece
        if len(content) >= most:
            break
    return content


def _status(status: int, content: bytes) -> str:
    """Return the name of an error response: its status and, if it states one, its code."""
    try:
        error = msgspec.json.decode(content)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError):
        return f"http_{status}"
    return f"http_{status}{_code(error)}"


def _code(error: object) -> str:
    """Return the code of an error object as the end of a name; a foreign text is not shown."""
    if not isinstance(error, dict):
        return ""
    code = error.get("code") or error.get("type")
    return f":{code}" if isinstance(code, str) and _NAME.fullmatch(code) else ""


def _connection(error: BaseException) -> str:
    """Return the name of an error of the connection."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connection_failed"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "early_end"
    return "connection_lost"
