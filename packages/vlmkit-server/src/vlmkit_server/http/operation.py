"""What a route reads and answers, said beside the route; the OpenAPI document is made of it."""

from typing import Any, Literal, NamedTuple

import msgspec

from vlmkit.settings.scope import Scope
from vlmkit_server.http.errors import ErrorBody

Access = Literal["open", "key"] | Scope
"""Who may ask: anybody, anybody with a key, or those whose key may do this."""


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
        form: of a form that is sent with POST in place of a body.
        posted: of the answer to POST, where the route is read, too.
        links: methods and paths of what can be done with the ``id`` of an answer.
        access: who may ask, where the server asks for keys.
        media_type: of an answer that is bytes.
        may_be_missing: whether a client may be told that nothing is here.
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
    may_be_missing: bool = False

    @property
    def types(self) -> list[Any]:
        """Every type that the document has to describe."""
        sent = [each for each in (self.body, self.form) if each]
        told = [each for each in (self.unready, self.deleted, self.posted) if each]
        answer = [] if self.answer is bytes else [self.answer]
        return [*answer, self.error, ErrorBody, *sent, *told]

    def of(self, method: str) -> "Operation":
        """Return what one method of a route takes and answers, where it has several."""
        if method == "POST" and self.posted:
            return Operation(self.posted, body=self.body, form=self.form, error=self.error)
        if method == "DELETE" and self.deleted:
            return Operation(self.deleted, error=self.error)
        return self._replace(form=None, body=None) if self.posted else self
