"""What a route reads and answers, said beside the route; the OpenAPI document is made of it."""

from typing import Any, NamedTuple

import msgspec

from vlmkit.server.http.errors import ErrorBody


class Operation(NamedTuple):
    """The types of one route's bodies.

    Attributes:
        answer: of an answer without error.
        body: of what is sent; None where nothing is.
        events: what each event of a stream is called; empty where nothing is streamed.
        has_timing: whether whole answers tell where the time went.
        error: of an error.
        unready: of the answer while there is no use in asking; None where that is an error.
        deleted: of the answer to DELETE, where that is taken.
        query: of the parameters of the URL, if there are any.
    """

    answer: Any
    body: type[msgspec.Struct] | None = None
    events: str = ""
    has_timing: bool = False
    error: type[msgspec.Struct] = ErrorBody
    unready: type[msgspec.Struct] | None = None
    deleted: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None

    @property
    def types(self) -> list[Any]:
        """Every type that the document has to describe."""
        sent = [self.body] if self.body else []
        told = [each for each in (self.unready, self.deleted) if each]
        return [self.answer, self.error, ErrorBody, *sent, *told]
