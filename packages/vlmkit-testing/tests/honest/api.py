"""An API with one route that answers, and one that lists the model."""

from collections.abc import Iterable, Sequence as Seq
from typing import Any

import msgspec

from vlmkit.types.completion import Choice, Chunk, Usage
from vlmkit.types.delta import Delta, ToolCallDelta, tool_calls_of
from vlmkit.types.message import TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import Fault, fault_of
from vlmkit_server.interfaces.api import Route
from vlmkit_server.interfaces.conversation import Conversation, ImageSource, SentMessage, SentPart
from vlmkit_server.wire.body import BodyReader

ASK, LIST = "/toy/ask", "/toy/models"


class Question(msgspec.Struct, kw_only=True):
    """A question."""

    text: str
    model: str | None = None
    images: list[str] = []
    stream: bool = False


class ToyCall(msgspec.Struct):
    """The call of a tool."""

    name: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, call: ToolCallPart) -> "ToyCall":
        """Return a call as clients see it."""
        return cls(call.name, call.parsed())


class ToyAnswer(msgspec.Struct):
    """An answer."""

    text: str
    calls: list[ToyCall] = []


class ToyError(msgspec.Struct):
    """An error."""

    wrong: str


class ToyModels(msgspec.Struct):
    """The served models."""

    names: list[str]


class ToyLines:
    """A line for each piece of text, and one for each call at the end."""

    media_type = "text/plain; charset=utf-8"
    ping = b""
    repeats_answer = False

    def __init__(self) -> None:
        self.calls: list[Delta] = []

    def opening(self) -> bytes:
        """Return nothing."""
        return b""

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the texts."""
        return b"".join(map(self.chunk, chunks))

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the text of a chunk."""
        self.calls += [delta for delta in chunk.deltas if isinstance(delta, ToolCallDelta)]
        return msgspec.json.encode(chunk.text) + b"\n"

    def closing(self, usage: Usage) -> bytes:
        """Return the calls and the end."""
        calls = map(ToyCall.of, tool_calls_of(self.calls))
        return b"".join(msgspec.json.encode(call) + b"\n" for call in calls) + b"end\n"

    def failed(self, error: Exception, scope: Any) -> bytes:
        """Return the error."""
        return b"error: " + fault_of(error, scope).message.encode() + b"\n"


class ToyApi:
    """Two routes."""

    error_type: type[msgspec.Struct] = ToyError
    reader = BodyReader(Question)
    lines: type[ToyLines] = ToyLines

    def write_error(self, fault: Fault, _status: int, _scope: Any) -> bytes:
        """Encode an error."""
        return msgspec.json.encode(ToyError(fault.message))

    def routes(self, _host: Host) -> Seq[Any]:
        """Return both routes."""
        return [
            Route(
                path=ASK,
                scope="chat",
                handler=self.ask,
                reader=self.reader,
                answer=ToyAnswer,
                stream_type=ToyLines.media_type,
            ),
            Route(path=LIST, scope="key", handler=self.names, method="GET", answer=ToyModels),
        ]

    def conversation(self, body: Question) -> Conversation:
        """Return the conversation of a body."""
        parts: list[SentPart] = [TextPart(body.text)]
        parts += [self.image(number, source) for number, source in enumerate(body.images)]
        return Conversation(model=body.model, messages=[SentMessage("user", parts, "text")])

    def image(self, number: int, source: str) -> ImageSource:
        """Return an image of a body."""
        return ImageSource(f"images[{number}]", source)

    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        answer = await exchange.run(self.conversation(body), "toy")
        if body.stream:
            return exchange.stream(answer, self.lines())
        return exchange.whole(answer, lambda done: [self.encoded(done.choices[0])])

    def encoded(self, choice: Choice) -> bytes:
        """Encode a whole answer."""
        calls = [*map(ToyCall.of, choice.tool_calls)]
        return msgspec.json.encode(ToyAnswer(choice.text, calls))

    async def names(self, exchange: Exchange, _: None) -> Any:
        """List the models."""
        return exchange.json(ToyModels([*exchange.service.models]))
