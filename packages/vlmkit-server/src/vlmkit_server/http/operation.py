"""Describes what a route accepts and returns; the OpenAPI document is generated from it."""

from typing import Any, NamedTuple

import msgspec

from vlmkit_server.http.errors import ErrorBody
from vlmkit_server.interfaces.api import Access


class Operation(NamedTuple):
    """The types of a route's bodies.

    Attributes:
        answer: the body of a successful response.
        body: the request body; None if there is none.
        events: the name of each event of a stream; empty if nothing is streamed.
        has_timing: whether complete responses have the ``Server-Timing`` header.
        error: the body of an error response.
        unready: the body of a 503 that is no error; None if there is none.
        deleted: the body of the response to DELETE, if the route has it.
        query: the parameters of the URL, if there are any.
        form: the form that POST accepts in place of a body.
        posted: the body of the response to POST, if the route has GET, too.
        links: methods and paths of the operations on the ``id`` of a response.
        access: who may call it, where the server requires keys.
        media_type: the type of a response that is bytes.
        stream_type: the media type of a stream: server-sent events, or lines that have the type of
            the response.
    """

    answer: Any
    body: type[msgspec.Struct] | None = None
    events: str = ""
    has_timing: bool = False
    error: type[msgspec.Struct] = ErrorBody
    unready: type[msgspec.Struct] | None = None
    deleted: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    form: type[msgspec.Struct] | None = None
    posted: type[msgspec.Struct] | None = None
    links: tuple[tuple[str, str], ...] = ()
    access: Access = "chat"
    media_type: str = "application/octet-stream"
    stream_type: str = "text/event-stream"

    @property
    def types(self) -> list[Any]:
        """Every type that the OpenAPI document describes."""
        sent = [each for each in (self.body, self.form) if each]
        other = [each for each in (self.unready, self.deleted, self.posted) if each]
        answer = [] if self.answer is bytes else [self.answer]
        return [*answer, self.error, ErrorBody, *sent, *other]

    def of(self, method: str) -> "Operation":
        """Return the part of this operation that one method of the route has."""
        if method == "POST" and self.posted:
            return Operation(self.posted, body=self.body, form=self.form, error=self.error)
        if method == "DELETE" and self.deleted:
            return Operation(self.deleted, error=self.error)
        return self._replace(form=None, body=None) if self.posted else self
