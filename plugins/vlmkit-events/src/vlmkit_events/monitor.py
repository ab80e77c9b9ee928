"""The monitor that publishes the cache events of each model."""

import threading
import time
from collections.abc import Mapping

import zmq

from vlmkit.errors import ConfigError
from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.observer import Observer
from vlmkit_events.addresses import MAX_RANKS, WHERE, Address, address
from vlmkit_events.settings import KvEventsSettings, ModelEndpoints
from vlmkit_events.stream import EventStream, StreamAddress
from vlmkit_server.interfaces.monitor import Monitor


class StreamObserver(Observer):
    """Publishes the changes of one engine's cache in a stream, and at the end that it is empty.

    Args:
        stream: has no other observer.
    """

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.is_closed = False

    def blocks(self, change: CacheChange, at_s: float) -> None:
        """Publish a change."""
        self.stream.publish(change, at_s)

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the stream."""
        return self.stream.stats()

    def close(self) -> None:
        """Publish that the cache is gone."""
        if self.is_closed:
            return
        try:
            self.stream.publish(CacheChange(is_cleared=True), time.time())
        finally:
            self.is_closed = True


class KvEventsMonitor(Monitor):
    """Publishes the cache events of all models, each replica in a stream of its own.

    A stream stays open while its model is not loaded, so that routers stay connected.

    Args:
        settings: where and how.

    Raises:
        ConfigError: an address is malformed, is no loopback address, or is given twice.
    """

    def __init__(self, settings: KvEventsSettings) -> None:
        self._settings = settings
        own = ModelEndpoints(endpoint=settings.endpoint, replay_endpoint=settings.replay_endpoint)
        self._only = _addresses(own, "")
        self._addresses = {
            name: _addresses(each, f"models.{name}.") for name, each in settings.models.items()
        }
        _check_distinct(*(self._addresses or {"": self._only}).values())
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._streams: dict[str, list[EventStream]] = {}
        self._observers: dict[str, dict[int, StreamObserver]] = {}

    def observer(self, model: str) -> Observer:
        """Return the observer of the model's first replica without one.

        Raises:
            ConfigError: the model has no address, or its address cannot be used.
        """
        with self._lock:
            events, replay = self._addresses_of(model)
            streams = self._streams.setdefault(model, [])
            observers = self._observers.setdefault(model, {})
            rank = 0
            while rank in observers and not observers[rank].is_closed:
                rank += 1
            if rank == len(streams):
                if rank == MAX_RANKS:
                    raise ConfigError(f"{WHERE}: model {model!r} has over {MAX_RANKS} replicas")
                where = StreamAddress(events, replay, model, rank)
                streams.append(EventStream(self._context, where, self._settings))
            observers[rank] = StreamObserver(streams[rank])
            return observers[rank]

    def _addresses_of(self, model: str) -> tuple[Address, Address]:
        if model in self._addresses:
            return self._addresses[model]
        if self._addresses or any(other != model for other in self._streams):
            raise ConfigError(
                f"{WHERE}: model {model!r} has no addresses, and the server has several models",
                hint=f"give each a table, such as [{WHERE}.models.{model!r}] with endpoint and "
                "replay_endpoint",
            )
        return self._only

    def close(self) -> None:
        """Publish what waits, and close all sockets."""
        with self._lock:
            streams, self._streams = self._streams, {}
            for each in streams.values():
                for stream in each:
                    stream.close()
            self._context.term()


def _addresses(endpoints: ModelEndpoints, setting: str) -> tuple[Address, Address]:
    return (
        address(endpoints.endpoint, f"{setting}endpoint"),
        address(endpoints.replay_endpoint, f"{setting}replay_endpoint"),
    )


def _check_distinct(*pairs: tuple[Address, Address]) -> None:
    all_addresses = [each.of(0) for pair in pairs for each in pair]
    for each in all_addresses:
        if all_addresses.count(each) > 1:
            raise ConfigError(f"{WHERE}: the address {each} is given twice")
