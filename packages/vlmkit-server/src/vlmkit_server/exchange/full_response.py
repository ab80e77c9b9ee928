"""The ASGI response that waits for the end of an answer; its sibling streams."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from vlmkit.kit.heap import NUM_AT_ONCE, release
from vlmkit.types.completion import Completion
from vlmkit_server.exchange.json_pieces import PIECE_BYTES, gathered, later
from vlmkit_server.exchange.server_timing import server_timing
from vlmkit_server.exchange.service import Service, disconnected
from vlmkit_server.http.caller import account_of
from vlmkit_server.http.errors import ClientGone, Unavailable

_JSON = (b"content-type", b"application/json")


class Ending(Protocol):
    """An answer, as far as its end is waited for."""

    async def aresult(self) -> Completion:
        """Wait for the end and return everything."""
        ...


class WholeAnswer:
    """Sends an answer when all of it is there.

    Args:
        stream: an answer that was accepted.
        encode: makes a body of it, in pieces.
        service: knows when the server gives up.
        headers: what to say besides.
        images_s: how long fetching and checking the images took.
    """

    def __init__(
        self,
        stream: Ending,
        encode: Callable[[Completion], Iterable[bytes]],
        service: Service,
        headers: Mapping[str, str],
        images_s: float = 0.0,
    ) -> None:
        self._stream = stream
        self._encode = encode
        self._service = service
        self._headers = headers
        self._images_s = images_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the end and answer; an error has its own status."""
        completion = await self._service.attend(self._stream.aresult(), receive, scope)
        if any(choice.finish_reason == "abort" for choice in completion.choices):
            raise Unavailable("the answer was cut off", code="aborted")
        timing = server_timing(self._images_s, completion.timings)
        headers = {"server-timing": timing, **self._headers}
        answer = PiecedAnswer(partial(self._encode, completion), self._service, headers)
        untold = [choice.samples for choice in completion.choices]
        del completion  # so that what was told of it can go
        try:
            await answer(scope, receive, send)
        finally:
            if sum(map(len, untold)) > NUM_AT_ONCE:
                self._service.offload.discard(partial(release, untold), account_of(scope))


class PiecedAnswer:
    """Sends JSON that is written piece by piece, as fast as its reader takes it.

    Args:
        make: begins to write, and returns the pieces; all of that runs beside the event loop.
        service: runs it, and knows when the server gives up.
        headers: what to say besides.
    """

    def __init__(
        self, make: Callable[[], Iterable[bytes]], service: Service, headers: Mapping[str, str]
    ) -> None:
        self._next = partial(gathered, later(make))
        self._service = service
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write and send; a short answer leaves as a whole, with its length."""
        encode = partial(self._service.offload.run, self._next, account_of(scope))
        first = await encode()
        if len(first) < PIECE_BYTES:
            await ASGIResponse(body=first, headers={**self._headers})(scope, receive, send)
            return
        own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": [_JSON, *own]})
        try:
            await self._service.attend(self._rest(first, encode, send), receive, scope)
        except ClientGone:
            return
        except Unavailable:
            if self._service.is_draining:  # what is open at the deadline is closed
                await disconnected(receive)
            return  # the connection is closed, so that nobody takes this for the end
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _rest(self, piece: bytes, encode: Callable[[], Awaitable[bytes]], send: Send) -> None:
        while piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await encode()
