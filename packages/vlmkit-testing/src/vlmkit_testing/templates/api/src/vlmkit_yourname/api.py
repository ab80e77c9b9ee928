"""An API for shell scripts: a question and an image in, lines of plain text or of JSON out.

``POST /yourname`` answers one question. A stream has one JSON object in each line, such as
``{"text": "a bird"}``, and ends with ``{"num_tokens": 2, "done": true}`` or ``{"error": "..."}``.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from litestar.types import ASGIApp, Scope

from vlmkit.types.completion import Chunk, Completion, Usage
from vlmkit.types.message import TextPart
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import Fault, fault_of
from vlmkit_server.interfaces.api import Route
from vlmkit_server.interfaces.conversation import (
    Conversation,
    ImageSource,
    SentMessage,
    SentPart,
)
from vlmkit_server.wire.body import BodyReader


class Question(msgspec.Struct, kw_only=True):
    """The body of ``POST /yourname``.

    Attributes:
        question: the question.
        model: the served name of the model; may be left out if there is one model.
        image: a ``data:`` URL, or an http(s) URL if the server fetches.
        max_tokens: the longest answer.
        stream: whether the answer is sent line by line.
    """

    question: str
    model: str | None = None
    image: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stream: bool = False


class Answer(msgspec.Struct, omit_defaults=True):
    """The response, and each line of a stream; the last one has the number of tokens."""

    text: str = ""
    num_tokens: int | None = None
    done: bool = False


class Error(msgspec.Struct):
    """The body of every error response, and the last line of a failed stream."""

    error: str
    field: str | None = None


QUESTION = BodyReader(Question)
LINES = "application/x-ndjson"


class Questions:
    """The API; ``apis.use`` selects it."""

    error_type = Error

    def write_error(self, fault: Fault, _status: int, _scope: Scope) -> bytes:
        """Encode an error."""
        return msgspec.json.encode(Error(fault.message, fault.param))

    def routes(self, _host: Host) -> Sequence[Route]:
        """Return the one route; a key needs the scope ``chat``."""
        route = Route(
            path="/yourname",
            scope="chat",
            handler=answer_question,
            reader=QUESTION,
            answer=Answer,
            event="line",
            stream_type=LINES,
        )
        return [route]


async def answer_question(exchange: Exchange, body: Question) -> ASGIApp:
    """Answer a question about an image."""
    answer = await exchange.run(conversation_of(body), "question")
    if body.stream:
        return exchange.stream(answer, Lines())
    return exchange.whole(answer, encoded)


def conversation_of(body: Question) -> Conversation:
    """Return the conversation of a body: one message, with the client's names of its fields."""
    parts: list[SentPart] = [ImageSource("image", body.image)] if body.image else []
    parts.append(TextPart(body.question))
    return Conversation(
        model=body.model,
        messages=[SentMessage("user", parts, "question")],
        sampling={} if body.max_tokens is None else {"max_tokens": body.max_tokens},
        names={"messages": "question"},
    )


def encoded(completion: Completion) -> Iterable[bytes]:
    """Encode a whole answer."""
    text, num_tokens = completion.choices[0].text, completion.usage.completion_tokens
    return [msgspec.json.encode(Answer(text, num_tokens, done=True))]


class Lines:
    """Encodes the chunks of a stream as lines of JSON."""

    media_type = LINES
    ping = b""
    repeats_answer = False

    def opening(self) -> bytes:
        """Return nothing: the first line is the first text."""
        return b""

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return a line for the text of each chunk."""
        texts = (chunk.text for chunk in chunks)
        return b"".join(msgspec.json.encode(Answer(text)) + b"\n" for text in texts if text)

    def closing(self, usage: Usage) -> bytes:
        """Return the last line of a complete answer."""
        last = Answer(num_tokens=usage.completion_tokens, done=True)
        return msgspec.json.encode(last) + b"\n"

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the last line of a failed answer."""
        fault = fault_of(error, scope)
        return msgspec.json.encode(Error(fault.message, fault.param)) + b"\n"
