"""A subscriber as routers have one: it follows sequence numbers, and asks for what it missed."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
import zmq

STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
          "lora_name", "extra_keys")  # fmt: skip
WAIT_S = 120.0


def free_ports(num: int) -> list[int]:
    """Return free ports after each of which another one is free."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < num:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + 1))
                if port < 65000:
                    found.append(port)
    return found


def as_map(event: Any) -> dict[str, Any]:
    """Return an event of either encoding as a map."""
    if isinstance(event, dict):
        return event
    names = {"BlockStored": STORED, "BlockRemoved": ("block_hashes", "medium")}.get(event[0], ())
    return {"type": event[0], **dict(zip(names, event[1:], strict=True))}


class Subscriber:
    """Builds an index: of each block the hash of its parent, its tokens and its extra keys.

    Args:
        context: of ZMQ.
        events: the address of live events.
        replay: the address of past events.
        loses: called with each sequence number; the batch is lost where it returns True.
        receives: live batches that ZMQ keeps for this subscriber.
    """

    def __init__(
        self,
        context: "zmq.Context[Any]",
        events: str,
        replay: str,
        loses: Callable[[int], bool] = lambda _: False,
        receives: int = 1000,
    ) -> None:
        self.index: dict[Any, tuple[Any, tuple[int, ...], Any]] = {}
        self.last, self.num_gaps, self.topics, self.ranks = -1, 0, set(), set()
        self.unknown: set[Any] = set()  # removed, and not in the index
        self._loses = loses
        self._live, self._replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self._live.setsockopt(zmq.RCVHWM, receives)
        self._live.connect(events)
        self._live.subscribe(b"")
        self._replay.connect(replay)

    def read(self, until: int) -> None:
        """Read until a batch of this number is applied."""
        deadline = time.monotonic() + WAIT_S
        while self.last < until:
            assert time.monotonic() < deadline, (self.last, until)
            if self._live.poll(200):
                topic, number, payload = self._live.recv_multipart()
                self.topics.add(topic)
                self._receive(int.from_bytes(number, "big"), payload)
            else:
                self.recover()

    def _receive(self, number: int, payload: bytes) -> None:
        if self._loses(number) or number <= self.last:
            return
        if number > self.last + 1:
            self.num_gaps += 1
            self.recover()
        if number > self.last:
            self._apply(number, payload)

    def recover(self) -> None:
        """Ask for the batches after the last one, and apply them."""
        for number, payload in self.replayed(self.last + 1):
            if number > self.last:
                self._apply(number, payload)

    def replayed(self, start: int) -> Iterator[tuple[int, bytes]]:
        self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            assert self._replay.poll(WAIT_S * 1000)
            *_, number, payload = self._replay.recv_multipart()
            if not payload:
                assert int.from_bytes(number, "big", signed=True) == -1
                return
            yield int.from_bytes(number, "big"), payload

    def _apply(self, number: int, payload: bytes) -> None:
        _, events, rank = msgspec.msgpack.decode(payload)
        self.ranks.add(rank)
        for event in map(as_map, events):
            if event["type"] == "AllBlocksCleared":
                self.index.clear()
            elif event["type"] == "BlockRemoved":
                for key in event["block_hashes"]:
                    if self.index.pop(key, None) is None:
                        self.unknown.add(key)
            else:
                self._store(event)
        self.last = number

    def _store(self, event: dict[str, Any]) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        for at, key in enumerate(event["block_hashes"]):
            tokens = tuple(event["token_ids"][at * size : (at + 1) * size])
            self.index[key] = parent, tokens, event["extra_keys"][at]
            parent = key

    def close(self) -> None:
        self._live.close(0)
        self._replay.close(0)


@contextmanager
def subscribers() -> Iterator[Callable[..., Subscriber]]:
    """Yield a function that connects a subscriber; all are closed at the end."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())

        def connect(events: str, replay: str, **options: Any) -> Subscriber:
            made = Subscriber(context, events, replay, **options)
            stack.callback(made.close)
            return made

        yield connect
