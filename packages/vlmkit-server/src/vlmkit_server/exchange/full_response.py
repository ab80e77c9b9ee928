"""ASGI responses that are sent once the answer is complete; ``streaming`` has the others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from vlmkit.kit.heap import NUM_AT_ONCE, release
from vlmkit.types.completion import Completion
from vlmkit_server.admission.admission import admission_of, disconnected
from vlmkit_server.exchange.json_pieces import PIECE_BYTES, deferred, gathered
from vlmkit_server.exchange.server_timing import server_timing
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import tenant_or_network
from vlmkit_server.http.errors import ClientGone, Unavailable

_JSON = (b"content-type", b"application/json")


class Ending(Protocol):
    """An answer whose end is awaited."""

    async def aresult(self) -> Completion:
        """Wait for the end, and return the completion."""
        ...


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """Sends an answer once it is complete.

    Attributes:
        stream: an accepted request's answer.
        encode: encodes the body, in pieces.
        service: cancels the work when the server gives up.
        headers: further response headers.
        images_s: how long fetching and checking the images took.
    """

    stream: Ending
    encode: Callable[[Completion], Iterable[bytes]]
    service: Service
    headers: Mapping[str, str]
    images_s: float = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the end and send the answer; an error has its own status."""
        completion = await admission_of(scope).attend(self.stream.aresult(), receive)
        if any(choice.finish_reason == "abort" for choice in completion.choices):
            raise Unavailable("the answer was cut off", code="aborted")
        timing = server_timing(self.images_s, completion.timings)
        headers = {"server-timing": timing, **self.headers}
        samples = [choice.samples for choice in completion.choices]
        is_long = sum(map(len, samples)) > NUM_AT_ONCE
        encode = partial(self.encode, completion)
        answer = PiecedAnswer(encode, self.service, headers, is_short=not is_long)
        del completion, encode  # so that encoded parts can be freed
        try:
            await answer(scope, receive, send)
        finally:
            if is_long:
                self.service.offload.discard(partial(release, samples), tenant_or_network(scope))


class PiecedAnswer:
    """Sends JSON that is encoded piece by piece, as fast as the client reads it.

    Args:
        make: starts the encoding, and returns the pieces.
        service: runs the encoding outside the event loop, and cancels it when the server gives up.
        headers: further response headers.
        is_short: whether the first piece is encoded in the event loop, since a change of threads
            would take longer.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[bytes]],
        service: Service,
        headers: Mapping[str, str],
        *,
        is_short: bool = False,
    ) -> None:
        self._next = partial(gathered, deferred(make))
        self._service = service
        self._headers = headers
        self._is_short = is_short

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Encode and send; a short answer is sent at once, with its length."""
        first = self._next() if self._is_short else await self._encoded(scope)
        if len(first) < PIECE_BYTES:
            await ASGIResponse(body=first, headers={**self._headers})(scope, receive, send)
            return
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": [_JSON, *headers]})
        try:
            await admission_of(scope).attend(self._rest(first, scope, send), receive)
        except ClientGone:
            return
        except Unavailable:
            if self._service.admission.is_draining:  # connections are closed at the deadline
                await disconnected(receive)
            return  # closes the connection, so that the client sees a truncated body
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _rest(self, piece: bytes, scope: Scope, send: Send) -> None:
        while piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await self._encoded(scope)

    async def _encoded(self, scope: Scope) -> bytes:
        """Return the next piece, encoded outside the event loop."""
        return await self._service.offload.run(self._next, tenant_or_network(scope))
