"""The ASGI response that tells the events of a log, from where its client was, to their end."""

from collections.abc import Mapping

import msgspec
from litestar.types import Scope, Send

from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.exchange.obfuscation import padded
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import ByteStream
from vlmkit_server.http.errors import fault_of


class SseReplay(ByteStream):
    """Sends a log's events, those that are there and those that come.

    Args:
        log: of an answer, which does not end when its client goes away.
        number: of the last event that the client knows; -1 if it knows none.
        service: knows when the server gives up.
        headers: what to say besides.
        hides_sizes: whether an event's size may not tell what is in it.

    Raises:
        RequestError: what follows is not kept any more.
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
        """Send everything."""
        while events := await self._log.after(self._number):
            self._number += len(events)
            body = b"".join(events)
            await self.send(send, padded(body) if self._hides_sizes else body)

    def closing(self) -> bytes:
        """Return nothing: the log has the end."""
        return b""

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that says why there are no more; the answer may go on."""
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
        """Do nothing: others may follow."""
