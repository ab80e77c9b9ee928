"""Hides the length of each token's text in the sizes of events, for clients that ask for it.

An observer of an encrypted connection sees sizes. OpenAI's APIs hide them with a field
``obfuscation`` of random characters; here, it pads each event to a multiple of some bytes.
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
    """Encodes an answer, and pads the events that contain pieces of it.

    Args:
        events: encodes the answer.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self.media_type = events.media_type
        self.ping, self.repeats_answer = events.ping, events.repeats_answer
        self.opening = events.opening

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks; may be empty."""
        return padded(self._events.chunks(chunks))

    def closing(self, usage: Usage) -> bytes:
        """Return the events after the last chunk."""
        return self._events.closing(usage)

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends a failed answer."""
        return self._events.failed(error, scope)


def padded(events: bytes) -> bytes:
    """Pad the events that contain pieces of an answer to multiples of ``NUM_BYTES``."""
    return b"".join(_padded(event) for event in events.split(_END) if event)


def _padded(event: bytes) -> bytes:
    name, _, _ = event.partition(b"\n")
    if name.startswith(b"event: ") and not name.endswith(b".delta"):
        return event + _END
    event = event.removesuffix(b"}")
    num_more = -(len(event) + len(_FIELD) - len(b"%b") + len(_END)) % NUM_BYTES
    return event + _FIELD % token_hex(NUM_BYTES)[:num_more].encode() + _END
