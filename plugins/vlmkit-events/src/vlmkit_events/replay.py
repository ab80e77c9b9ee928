"""Past batches, and subscribers that ask for them again.

The oldest batch that is kept always describes a whole cache, so that a subscriber without earlier
batches gets the same index.
"""

import itertools
import time
from collections import deque
from typing import Any, NamedTuple

import zmq

SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
MAX_REPLAYS = 16  # at the same time; further requests are ignored
MAX_IDLE_S = 30.0  # of a subscriber that does not read its replay
TURN_BATCHES = 64  # sent to one subscriber before the others and live events
MAX_FRAME_BYTES = 1024  # of a request or a subscription; a connection with a longer one is closed


class History:
    """The batches that can be replayed.

    Args:
        max_batches: batches after those that describe the whole cache.
        max_bytes: their size in bytes; it may be that of the whole cache, if that is larger.

    Attributes:
        next_sequence: the sequence number of the next batch.
    """

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self.next_sequence = 0
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._payloads: deque[bytes] = deque()
        self._num_of_index = self._bytes_of_index = self._num_bytes = 0

    @property
    def oldest(self) -> int:
        """The sequence number of the oldest batch."""
        return self.next_sequence - len(self._payloads)

    @property
    def is_full(self) -> bool:
        """Whether the cache should be described again, so that older batches can go."""
        num_after = len(self._payloads) - self._num_of_index
        bytes_after = self._num_bytes - self._bytes_of_index
        is_long = num_after > max(self._max_batches, self._num_of_index)
        return is_long or bytes_after > max(self._max_bytes, self._bytes_of_index)

    def add(self, payload: bytes) -> int:
        """Keep a batch, and return its sequence number."""
        self._payloads.append(payload)
        self._num_bytes += len(payload)
        self.next_sequence += 1
        return self.next_sequence - 1

    def forget_before(self, sequence: int) -> None:
        """Drop older batches; those from ``sequence`` on describe the whole cache."""
        while self.oldest < sequence:
            self._num_bytes -= len(self._payloads.popleft())
        self._num_of_index, self._bytes_of_index = len(self._payloads), self._num_bytes

    def after(self, sequence: int, num: int) -> list[bytes]:
        """Return up to ``num`` batches from a sequence number on, which is not too old."""
        start = min(sequence - self.oldest, len(self._payloads))
        return list(itertools.islice(self._payloads, start, start + num))


class _Replay(NamedTuple):
    """A replay under way: its next batch, and when it was last sent one."""

    sequence: int
    sent_s: float


class Replayer:
    """Answers requests for past batches, without ever waiting for a subscriber.

    Args:
        socket: a ROUTER socket, bound; it fails rather than dropping a message.
        history: the batches.
        before_sequence: frames before the sequence number of each batch.
        before_end: frames before the sequence number of the end.

    Attributes:
        num_requests: valid requests.
        num_bad_requests: malformed ones, and those beyond the bound, which get no answer.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        history: History,
        before_sequence: tuple[bytes, ...],
        before_end: tuple[bytes, ...],
    ) -> None:
        self._socket = socket
        self._history = history
        self._before_sequence = before_sequence
        self._before_end = before_end
        self._replays: dict[bytes, _Replay] = {}
        self.num_requests = self.num_bad_requests = 0

    @property
    def is_busy(self) -> bool:
        """Whether a replay is under way."""
        return bool(self._replays)

    def read(self) -> None:
        """Accept the requests that have arrived, a bounded number."""
        for _ in range(MAX_REPLAYS):
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            identity, *rest = frames
            is_new = identity not in self._replays
            if (
                len(rest) != 2
                or rest[0]
                or len(rest[1]) != SEQUENCE_BYTES
                or (is_new and len(self._replays) >= MAX_REPLAYS)
            ):
                self.num_bad_requests += 1
            else:
                self.num_requests += 1
                start = int.from_bytes(rest[1], "big")
                self._replays[identity] = _Replay(start, time.monotonic())

    def send(self) -> None:
        """Send each subscriber what it takes now."""
        for identity, replay in list(self._replays.items()):
            try:
                rest = self._advance(identity, replay)
            except zmq.ZMQError:  # the subscriber is gone
                rest = None
            if rest is None:
                del self._replays[identity]
            else:
                self._replays[identity] = rest

    def _advance(self, identity: bytes, replay: _Replay) -> _Replay | None:
        """Send some batches, or the end; return what is left."""
        if time.monotonic() - replay.sent_s > MAX_IDLE_S:
            return None
        sequence, sent_s = max(replay.sequence, self._history.oldest), replay.sent_s
        try:
            for payload in self._history.after(sequence, TURN_BATCHES):
                number = sequence.to_bytes(SEQUENCE_BYTES, "big")
                self._send(identity, *self._before_sequence, number, payload)
                sequence, sent_s = sequence + 1, time.monotonic()
            if sequence >= self._history.next_sequence:
                self._send(identity, *self._before_end, END, b"")
                return None
        except zmq.Again:  # the subscriber has no room
            pass
        return _Replay(sequence, sent_s)

    def _send(self, *frames: Any) -> None:
        self._socket.send_multipart(frames, zmq.DONTWAIT)
