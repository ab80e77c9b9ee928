"""Events that do not tell by their size how long a token's text is, for who asks for that.

Whoever watches an encrypted connection sees sizes. OpenAI's APIs hide them by a field
``obfuscation`` of random characters; here it fills each event up to a multiple of some bytes.
"""

from collections.abc import Iterable
from secrets import token_hex

from litestar.types import Scope

from vlmkit.types.completion import Chunk, Usage
from vlmkit_server.exchange.streaming import Events

NUM_BYTES = 64
_FIELD = b',"obfuscation":"%b"}'
_END = b"\n\n"


class Obfuscated:
    """Encodes an answer as others do, and fills up the events that tell pieces of it.

    Args:
        events: encodes it.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self.ping, self.tells_all = events.ping, events.tells_all
        self.opening = events.opening

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks; may be empty."""
        return filled_up(self._events.chunks(chunks))

    def closing(self, usage: Usage) -> bytes:
        """Return the events after the last chunk."""
        return self._events.closing(usage)

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends an answer which failed."""
        return self._events.failed(error, scope)


def filled_up(events: bytes) -> bytes:
    """Return events of which those that tell pieces of an answer have no size of their own."""
    return b"".join(_filled_up(event) for event in events.split(_END) if event)


def _filled_up(event: bytes) -> bytes:
    name, _, _ = event.partition(b"\n")
    if name.startswith(b"event: ") and not name.endswith(b".delta"):
        return event + _END
    event = event.removesuffix(b"}")
    num_more = -(len(event) + len(_FIELD) - len(b"%b") + len(_END)) % NUM_BYTES
    return event + _FIELD % token_hex(NUM_BYTES)[:num_more].encode() + _END
