"""The ASGI response that replays an event log, from the client's position to its end."""

from collections.abc import Mapping

import msgspec
from litestar.types import Scope, Send

from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.exchange.obfuscation import padded
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import ByteStream
from vlmkit_server.http.errors import fault_of


class SseReplay(ByteStream):
    """Sends the past and future events of a log.

    Args:
        log: the log of an answer, which continues when the client disconnects.
        number: the number of the last event that the client has; -1 for none.
        service: stops the response when the server shuts down.
        headers: additional response headers.
        hides_sizes: whether to pad events, so that their sizes do not reveal their text.

    Raises:
        RequestError: the next event was dropped from the log.
    """

    ping = b": ping\n\n"

    def __init__(
        self,
        log: EventLog,
        number: int,
        service: Service,
        headers: Mapping[str, str],
        *,
        hides_sizes: bool = False,
    ) -> None:
        super().__init__(service, headers)
        log.check(number)
        self._log = log
        self._number = number
        self._hides_sizes = hides_sizes

    async def write(self, send: Send) -> None:
        """Send all events until the log ends."""
        while events := await self._log.after(self._number):
            self._number += len(events)
            body = b"".join(events)
            await self.send(send, padded(body) if self._hides_sizes else body)

    def closing(self) -> bytes:
        """Return nothing, since the log has the last event."""
        return b""

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event with the reason why the stream ends; the answer may continue."""
        fault = fault_of(error, scope)
        fields = {
            "type": "error",
            "code": fault.code,
            "message": fault.message,
            "param": fault.param,
        }
        data = msgspec.json.encode(fields | {"sequence_number": self._number + 1})
        return b"event: error\ndata: %b\n\n" % data

    def abort(self) -> None:
        """Do nothing, since other clients may read the log."""
