"""The ASGI response that waits for the end of an answer; its sibling streams."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from vlmkit.ask.completion import Completion
from vlmkit.server.http.errors import Unavailable
from vlmkit.server.work.service import Service
from vlmkit.server.work.timing import server_timing


class Ending(Protocol):
    """An answer, as far as its end is waited for."""

    async def aresult(self) -> Completion:
        """Wait for the end and return everything."""
        ...


class WholeAnswer:
    """Sends an answer when all of it is there.

    Args:
        stream: an answer that was accepted.
        encode: makes a body of it.
        service: knows when the server gives up.
        headers: what to say besides.
        images_s: how long fetching and checking the images took.
    """

    def __init__(
        self,
        stream: Ending,
        encode: Callable[[Completion], bytes],
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
        completion = await self._service.attend(self._stream.aresult(), receive)
        if any(choice.finish_reason == "abort" for choice in completion.choices):
            raise Unavailable("the answer was cut off", code="aborted")
        timing = server_timing(self._images_s, completion.timings)
        # In a thread: a long answer with likeliest tokens takes seconds, and others are served.
        body = await asyncio.to_thread(self._encode, completion)
        response = ASGIResponse(body=body, headers={"server-timing": timing, **self._headers})
        await response(scope, receive, send)
