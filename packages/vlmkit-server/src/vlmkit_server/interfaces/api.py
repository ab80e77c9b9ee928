"""The interface of an API: HTTP routes in one wire format, answered with the server's models.

An API declares routes. A route decodes a body and hands it to a handler with an
:class:`~vlmkit_server.conversation.exchange.Exchange`. The exchange admits the request, reads the
body within its limits, finds the model, runs the conversation and sends the answer. Authentication,
rate limits, deadlines, logs and metrics apply to every route; an API cannot leave them out.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from vlmkit.settings.scope import Scope

if TYPE_CHECKING:
    from litestar import Controller
    from litestar.types import ASGIApp, Scope as HttpScope

    from vlmkit_server.conversation.exchange import Exchange
    from vlmkit_server.conversation.host import Host
    from vlmkit_server.http.errors import Fault
    from vlmkit_server.wire.body import BodyReader

Access = Literal["open", "key"] | Scope
"""Who may call a route: anyone, anyone with a key, or keys with a scope."""

Handler = Callable[["Exchange", Any], Coroutine[Any, Any, "ASGIApp"]]
"""Answers a decoded body; nothing is sent before it returns the response."""

Method = Literal["GET", "POST", "DELETE"]
"""The methods that a route may have."""

Answers = Literal["generate", "embed", "prompt", ""]
"""What a model does for a route: an answer, vectors, the prompt alone, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route.

    Attributes:
        path: its path, such as ``/api/chat``.
        scope: who may call it, where the server requires keys. There is no default.
        handler: answers a body. The first line of its docstring is the summary in the OpenAPI
            document.
        reader: decodes the body; None if there is none. The handler then gets None, and the request
            counts among those in progress once it leases a model.
        answer: the type of a successful response.
        method: the HTTP method.
        answers: what a model does for it; says which fields of the body ``/v1/capabilities`` lists.
        event: the name of each event of a stream, for the OpenAPI document; empty if nothing is
            streamed.
        stream_type: the media type of a stream: server-sent events, or lines of JSON, each of
            which has the type of the response.
        has_timing: whether complete responses have the ``Server-Timing`` header.
        links: methods and paths of the operations on the ``id`` of a response.
        buffers_streams: whether a streamed answer is kept in memory as a whole, and counts there.
        decodes: whether the handler gets the decoded body. With False it gets the bytes, and
            ``reader`` only describes them.
        needs_json_type: whether a body needs the header ``content-type: application/json``. With
            False, only requests that a web page may have sent need it.
        media_type: the media type of a response whose ``answer`` is bytes.
    """

    path: str
    scope: Access
    handler: Handler
    answer: Any
    reader: "BodyReader[Any] | None" = None
    method: Method = "POST"
    answers: Answers = "generate"
    event: str = ""
    stream_type: str = "text/event-stream"
    has_timing: bool = False
    links: tuple[tuple[str, str], ...] = ()
    buffers_streams: bool = False
    decodes: bool = True
    needs_json_type: bool = True
    media_type: str = "application/octet-stream"


class Api(Protocol):
    """Some routes in one wire format."""

    @property
    def error_type(self) -> type[msgspec.Struct]:
        """The type of the body of an error response, for the OpenAPI document."""
        ...

    def write_error(self, fault: "Fault", status: int, scope: "HttpScope") -> bytes:
        """Encode an error in this API's shape; a fault has no text of a client."""
        ...

    def routes(self, host: "Host", /) -> "Sequence[Route | type[Controller]]":
        """Return the routes; called once, before the server starts.

        Routes that answer no body with a model may be a controller of Litestar, each of whose
        handlers states an :class:`~vlmkit_server.http.operation.Operation`. A route ``GET /``
        replaces the server's start page. Clients that are no browser ask it whether a server is
        there: it must answer them with status 200 and without a key.

        Args:
            host: the server's parts that an API may use.
        """
        ...
