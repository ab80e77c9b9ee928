"""One stream of events: two sockets and the thread that serves them.

Nothing here waits for a subscriber. One that reads too slowly loses batches, which the sequence
numbers show, and may ask for them again.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit_events.addresses import WHERE, Address, check_replaceable
from vlmkit_events.batches import BatchEncoder
from vlmkit_events.replay import MAX_FRAME_BYTES, SEQUENCE_BYTES, History, Replayer
from vlmkit_events.settings import KvEventsSettings

log = logging.getLogger(__name__)

MAX_CHANGES = 16  # waiting for the thread; an observer of the core bounds those behind
WAIT_S = 0.5  # between two looks whether the thread still runs
RETRY_MS = 10  # until a replay that a subscriber did not take is tried again
LINGER_MS = 1000  # for the last batches to reach subscribers
MAX_REPLAY_UNSENT = 64  # messages for one subscriber of a replay


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Where one replica of a model publishes.

    Attributes:
        events: the address of the model's live events.
        replay: the address of its past events.
        model: the model's name.
        rank: the number of the replica.
    """

    events: Address
    replay: Address
    model: str
    rank: int


class EventStream:
    """Publishes the changes of one cache. Its methods may be called from any thread.

    Args:
        context: of ZMQ.
        address: where it publishes.
        settings: how it publishes.

    Raises:
        ConfigError: an address is in use, or cannot be used.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: StreamAddress,
        settings: KvEventsSettings,
    ) -> None:  # fmt: skip
        topic = settings.topic.replace("{model}", address.model)
        topic = topic.replace("{rank}", str(address.rank))
        self._topic = topic.encode(errors="replace")
        self._encoder = BatchEncoder(settings, address.rank)
        self._history = History(settings.replay_batches, settings.replay_bytes)
        self._index: dict[bytes, CacheBlock] = {}
        self._changes: queue.Queue[tuple[CacheChange, float] | None] = queue.Queue(MAX_CHANGES)
        self._num_dropped = 0
        self._events = _bound(context, zmq.XPUB, address.events, address.rank, {
            zmq.SNDHWM: settings.max_unsent_batches, zmq.XPUB_NODROP: 1,
        })  # fmt: skip
        try:
            requests = _bound(context, zmq.ROUTER, address.replay, address.rank, {
                zmq.SNDHWM: MAX_REPLAY_UNSENT, zmq.ROUTER_MANDATORY: 1,
            })  # fmt: skip
        except ConfigError:
            self._events.close(0)
            raise
        has_topic = settings.encoding == "map"  # vLLM replays with the topic since it sends maps
        self._requests = requests
        self._replayer = Replayer(
            requests,
            self._history,
            (b"", self._topic) if has_topic else (b"",),
            (b"", b"") if has_topic else (b"",),
        )
        self._waking = threading.Lock()
        self._wake_sender, self._wake_receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._wake_receiver.bind(f"inproc://{id(self)}")
        self._wake_sender.connect(f"inproc://{id(self)}")
        self._thread = threading.Thread(
            target=self._run, name=f"vlmkit-kv-events-{address.rank}", daemon=True
        )
        self._thread.start()

    def publish(self, change: CacheChange, at_s: float) -> None:
        """Publish a change; waits while many others wait.

        Raises:
            EngineError: the stream failed, which the log reports.
        """
        self._put((change, at_s))

    def stats(self) -> Mapping[str, float]:
        """Return what was published, lost and asked for again."""
        return {
            "num_batches": self._history.next_sequence,
            "num_batches_dropped": self._num_dropped,
            "num_blocks": len(self._index),
            "num_replays": self._replayer.num_requests,
            "num_bad_requests": self._replayer.num_bad_requests,
        }

    def close(self) -> None:
        """Publish what waits, and close the sockets."""
        with contextlib.suppress(EngineError):
            self._put(None)
        self._thread.join()
        self._wake_sender.close(0)

    def _put(self, item: tuple[CacheChange, float] | None) -> None:
        while self._thread.is_alive():
            try:
                self._changes.put(item, timeout=WAIT_S)
            except queue.Full:
                continue
            with self._waking, contextlib.suppress(zmq.Again):  # it is woken anyway
                self._wake_sender.send(b"", zmq.DONTWAIT)
            return
        raise EngineError("the publisher of cache events has failed or is closed")

    # In the thread.

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            log.exception("the publisher of cache events failed")
        for each in (self._events, self._requests):
            each.close(LINGER_MS)
        self._wake_receiver.close(0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._wake_receiver, self._events, self._requests):
            poller.register(each, zmq.POLLIN)
        is_open = True
        while is_open:
            poller.poll(RETRY_MS if self._replayer.is_busy else None)
            _discard(self._wake_receiver)
            _discard(self._events)  # subscriptions, which would pile up
            is_open = self._publish_waiting()
            self._replayer.read()
            self._replayer.send()

    def _publish_waiting(self) -> bool:
        """Publish the changes that wait; return whether more may come."""
        while True:
            try:
                item = self._changes.get_nowait()
            except queue.Empty:
                return True
            if item is None:
                return False
            self._publish(*item)

    def _publish(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self._index.clear()
        for key in change.removed:
            self._index.pop(key, None)
        self._index.update((block.key, block) for block in change.stored)
        self._send_all(change, at_s)
        if self._history.is_full:
            whole = CacheChange(tuple(self._index.values()), is_cleared=True)
            self._send_all(whole, at_s)

    def _send_all(self, change: CacheChange, at_s: float) -> None:
        start = self._history.next_sequence
        for payload in self._encoder.encode(change, at_s):
            number = self._history.add(payload).to_bytes(SEQUENCE_BYTES, "big")
            self._send((self._topic, number, payload))
        if change.is_cleared:
            self._history.forget_before(start)

    def _send(self, frames: tuple[bytes, ...]) -> None:
        """Send a batch to all subscribers that have room for it."""
        try:
            self._events.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:  # a subscriber has no room, and nothing was sent
            self._num_dropped += 1
            self._events.setsockopt(zmq.XPUB_NODROP, 0)
            self._events.send_multipart(frames, zmq.DONTWAIT)
            self._events.setsockopt(zmq.XPUB_NODROP, 1)


def _discard(socket: "zmq.Socket[bytes]") -> None:
    """Read what has arrived on a socket."""
    try:
        while True:
            socket.recv(zmq.DONTWAIT)
    except zmq.Again:
        return


def _bound(
    context: "zmq.Context[zmq.Socket[bytes]]",
    kind: int,
    address: Address,
    rank: int,
    options: Mapping[int, int],
) -> "zmq.Socket[bytes]":
    """Return a bound socket.

    Raises:
        ConfigError: the address is in use, or cannot be used.
    """
    where = address.of(rank)
    socket = context.socket(kind)
    try:
        for option, value in {**options, zmq.MAXMSGSIZE: MAX_FRAME_BYTES}.items():
            socket.setsockopt(option, value)
        if "[" in where:
            socket.setsockopt(zmq.IPV6, 1)
        if not address.port:
            _bind_local(socket, where)
        else:
            socket.bind(where)
    except (zmq.ZMQError, ConfigError) as error:
        socket.close(0)
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{WHERE}: cannot publish on {where}: {error.strerror}",
            hint="give each model and each server addresses of its own",
        ) from None
    return socket


def _bind_local(socket: "zmq.Socket[bytes]", where: str) -> None:
    path = Path(where.removeprefix("ipc://"))
    check_replaceable(path)
    socket.bind(where)
    path.chmod(0o600)
