"""Subscribers rebuild the index of a cache exactly, whatever they miss."""

import random
import stat
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from subscriber import free_ports, subscribers

from vlmkit.errors import ConfigError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.block_pool import BlockPool
from vlmkit.types.sampling import SamplingParams
from vlmkit_events.monitor import KvEventsMonitor
from vlmkit_events.settings import KvEventsSettings, ModelEndpoints
from vlmkit_events.wire import int_hash
from vlmkit_testing import MonitorContract

IMAGE, TENANTS = 9, (b"a" * 32, b"b" * 32)
NUM_REQUESTS = 1000


class Collected:
    """The changes of a cache since the last :meth:`take`, as its listener."""

    def __init__(self):
        self.changes, self.blocks = [], {}

    def stored(self, block):
        self.blocks[block.key] = block
        self.changes.append(CacheChange(stored=(block,)))

    def removed(self, key):
        del self.blocks[key]
        self.changes.append(CacheChange(removed=(key,)))

    def cleared(self):
        raise AssertionError

    def take(self):
        taken, self.changes = self.changes, []
        return taken


def random_request(chance, number):
    """Return a request with one of few beginnings, sometimes an image, and its own end."""
    ids = [chance.randrange(3) + 1, *([chance.randrange(4)] * 8)]
    media = ()
    if chance.random() < 0.4:
        start, digest = len(ids), chance.choice([b"r", b"g"]) * 32
        ids += [IMAGE] * 6
        media = (MediaSlot(start, start + 6, digest, {}, 6),)
    ids += [chance.randrange(100) for _ in range(chance.randrange(20))]
    return Sequence(
        str(number), Prompt(tuple(ids), media), SamplingParams(), scope=chance.choice(TENANTS)
    )


def changes_of_requests(num=NUM_REQUESTS):
    """Yield the changes of each of many random requests to a small pool, and its listener."""
    chance, pool, listener = random.Random(3), BlockPool(60, 4), Collected()
    pool.listener = listener
    running, num_found = [], 0
    for number in range(num):
        made = random_request(chance, number)
        while (admission := pool.admit(made)) is None:
            pool.release(running.pop(0))
        num_found += admission.num_cached > 0
        pool.commit(made, len(made))
        running.append(made)
        if len(running) > 3:
            pool.release(running.pop(chance.randrange(4)))
        yield listener.take(), listener
    assert num_found > num / 5


@contextmanager
def publishing(**settings):
    """Yield an observer of a monitor, and the addresses of its stream."""
    ports = free_ports(2)
    addresses = [f"tcp://127.0.0.1:{port}" for port in ports]
    own = {"endpoint": addresses[0], "replay_endpoint": addresses[1]} | settings
    monitor = KvEventsMonitor(KvEventsSettings(**own))
    try:
        observer = monitor.observer("m")
        observer.blocks(CacheChange(is_cleared=True), time.time())
        yield observer, addresses
    finally:
        monitor.close()


def expected(blocks, hash_of=int_hash, *, has_scopes=False):
    """Return what an index of these blocks must be."""

    def extra_keys(block):
        keys = [digest.hex() for digest in block.media]
        if has_scopes and not block.parent:
            keys.append(f"vlmkit-scope:{block.scope.hex()}")
        return keys or None

    return {
        hash_of(block.key): (
            hash_of(block.parent) if block.parent else None,
            block.tokens,
            extra_keys(block),
        )
        for block in blocks.values()
    }


def whole_key(key):
    return key


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("settings", "hash_of"),
    [
        ({}, int_hash),
        ({"encoding": "array", "block_hashes": "bytes"}, whole_key),
        ({"publishes_scopes": True, "topic": "kv@pod@{model}"}, int_hash),
    ],
)
def test_a_subscriber_that_loses_batches_has_the_index_of_the_cache(settings, hash_of):
    losing = random.Random(5)
    with publishing(**settings) as (observer, addresses), subscribers() as connect:
        reader = connect(*addresses, loses=lambda _: losing.random() < 0.2)
        sent = 0
        for number, (changes, cache) in enumerate(changes_of_requests(), 1):
            for change in changes:
                observer.blocks(change, time.time())
            sent += len(changes)
            if number % 100 == 0:
                reader.read(sent)
                has_scopes = "publishes_scopes" in settings
                assert reader.index == expected(cache.blocks, hash_of, has_scopes=has_scopes)
        assert number == NUM_REQUESTS
        assert reader.num_gaps >= 5
        assert not reader.unknown
        assert reader.ranks == {0}
        assert reader.topics == {settings.get("topic", "").replace("{model}", "m").encode()}


def test_keys_of_two_tenants_never_meet():
    blocks = {}
    for _, cache in changes_of_requests(200):
        blocks |= cache.blocks
    hashes = [{int_hash(b.key) for b in blocks.values() if b.scope == t} for t in TENANTS]
    tokens = [{b.tokens for b in blocks.values() if b.scope == t} for t in TENANTS]
    assert tokens[0] & tokens[1]
    assert not hashes[0] & hashes[1]


@pytest.mark.parametrize("limit", [{"replay_batches": 5}, {"replay_bytes": 2000}])
def test_a_subscriber_that_connects_late_gets_the_whole_index_of_a_short_buffer(limit):
    with publishing(**limit) as (observer, addresses), subscribers() as connect:
        reader = None
        for number, (changes, cache) in enumerate(changes_of_requests(), 1):
            for change in changes:
                observer.blocks(change, time.time())
            if number in {300, 700, 1000}:
                observer.blocks(CacheChange(removed=(b"unknown",)), time.time())  # the last one
                reader = connect(*addresses)
                while int_hash(b"unknown") not in reader.unknown:
                    reader.recover()
                assert reader.index == expected(cache.blocks)
                first, _ = next(connect(*addresses).replayed(0))
                assert first > number
                reader.unknown.clear()
        assert reader is not None


def test_one_big_change_arrives_in_batches_that_routers_take():
    blocks = {}
    parent = b""
    for number in range(20_000):
        key = number.to_bytes(32, "big")
        blocks[key] = CacheBlock(key, parent, tuple(range(number, number + 16)))
        parent = key if number % 5000 else b""
    with publishing() as (observer, addresses), subscribers() as connect:
        change = CacheChange(tuple(reversed(blocks.values())), is_cleared=True)
        observer.blocks(change, time.time())
        until(lambda: observer.stats()["num_blocks"] == len(blocks))
        reader = connect(*addresses)
        seen = set()
        for number, payload in reader.replayed(0):
            assert len(payload) < 2**20
            reader._apply(number, payload)
            for key, (parent, *_) in reader.index.items():
                if key not in seen:
                    assert parent is None or parent in reader.index
            seen = set(reader.index)
        assert reader.index == expected(blocks)


def test_a_subscriber_that_does_not_read_stops_nothing_and_catches_up():
    with publishing(max_unsent_batches=2) as (observer, addresses), subscribers() as connect:
        stuck, reader = connect(*addresses, receives=1), connect(*addresses)
        reader.read(0)
        stuck.read(0)
        blocks = {}
        for number in range(1, 1500):
            key = number.to_bytes(32, "big")
            blocks[key] = CacheBlock(key, b"", tuple(range(60_000)))
            observer.blocks(CacheChange((blocks[key],)), time.time())
            if number > 20:
                gone = (number - 20).to_bytes(32, "big")
                del blocks[gone]
                observer.blocks(CacheChange(removed=(gone,)), time.time())
        until(lambda: observer.stats()["num_batches"] > 2900)
        assert observer.stats()["num_batches_dropped"]
        last = int(observer.stats()["num_batches"]) - 1
        for each in (reader, stuck):
            each.read(last)
            assert each.index == expected(blocks)
        assert stuck.num_gaps


def test_malformed_requests_for_a_replay_are_counted_and_get_no_answer():
    malformed = [[b""], [b"x", bytes(8)], [b"", b""], [b"", bytes(7)], [b"", bytes(9)],
                 [b"", bytes(8), b""], [bytes(8)], [b"", b"x" * 900]]  # fmt: skip
    with publishing() as (observer, addresses), zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(addresses[1])
            for frames in malformed:
                dealer.send_multipart(frames)
            until(lambda: observer.stats()["num_bad_requests"] == len(malformed))
            dealer.send_multipart([b"", (2**64 - 1).to_bytes(8, "big")])
            assert dealer.poll(120_000)
            assert dealer.recv_multipart() == [b"", b"", b"\xff" * 8, b""]
            assert not dealer.poll(200)
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(addresses[1])
            dealer.send_multipart([b"", b"x" * 2**20])  # ends the connection
        with subscribers() as connect:
            reader = connect(*addresses)
            reader.recover()
            assert reader.last == 0


def test_many_subscribers_that_ask_and_never_read_stop_no_other():
    with publishing() as (observer, addresses), zmq.Context() as context:
        for number in range(300):
            block = CacheBlock(number.to_bytes(32, "big"), b"", tuple(range(20_000)))
            observer.blocks(CacheChange((block,)), time.time())
        dealers = [context.socket(zmq.DEALER) for _ in range(40)]
        try:
            for dealer in dealers:
                dealer.setsockopt(zmq.RCVHWM, 1)
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(addresses[1])
                dealer.send_multipart([b"", bytes(8)])
            until(lambda: observer.stats()["num_bad_requests"] == 24)
            observer.blocks(CacheChange(is_cleared=True), time.time())
            until(lambda: observer.stats()["num_blocks"] == 0)
        finally:
            for dealer in dealers:
                dealer.close()


def test_the_end_of_a_model_is_published_and_leaves_no_thread():
    before = set(threading.enumerate())
    with subscribers() as connect:
        with publishing() as (observer, addresses):
            reader = connect(*addresses)
            reader.read(0)
            block = CacheBlock(b"k" * 32, b"", (1, 2))
            observer.blocks(CacheChange((block,)), time.time())
            observer.close()
            observer.close()
        while reader.last < 2:
            assert reader._live.poll(120_000)
            _, number, payload = reader._live.recv_multipart()
            reader._apply(int.from_bytes(number, "big"), payload)
        assert reader.index == {}
    assert set(threading.enumerate()) == before


def test_replicas_have_addresses_of_their_own_and_take_over_that_of_a_closed_one():
    events, replay = free_ports(2)
    settings = KvEventsSettings(
        endpoint=f"tcp://localhost:{events}", replay_endpoint=f"tcp://127.0.0.1:{replay}"
    )
    monitor = KvEventsMonitor(settings)
    try:
        first, second = monitor.observer("m"), monitor.observer("m")
        with subscribers() as connect:
            for rank, observer in enumerate((first, second)):
                block = CacheBlock(bytes([rank]) * 32, b"", (rank,))
                observer.blocks(CacheChange((block,), is_cleared=True), time.time())
                reader = connect(
                    f"tcp://127.0.0.1:{events + rank}", f"tcp://127.0.0.1:{replay + rank}"
                )
                reader.read(0)
                assert reader.index == expected({block.key: block})
                assert reader.ranks == {rank}
        first.close()
        third = monitor.observer("m")
        assert third.stream is first.stream
        with pytest.raises(ConfigError, match="model 'other' has no addresses"):
            monitor.observer("other")
    finally:
        monitor.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://0.0.0.0:5557", "not a loopback address"),
        ("tcp://*:5557", "not a loopback address"),
        ("tcp://10.1.2.3:5557", "not a loopback address"),
        ("tcp://example.com:5557", "not a loopback address"),
        ("tcp://[::]:5557", "not a loopback address"),
        ("tcp://127.0.0.1:0", "neither tcp"),
        ("tcp://127.0.0.1:65535", "neither tcp"),
        ("tcp://127.0.0.1", "neither tcp"),
        ("http://127.0.0.1:5557", "neither tcp"),
        ("ipc://@abstract", "absolute path"),
        ("ipc://" + "/x" * 60, "absolute path"),
        ("tcp://127.0.0.1:6557", "given twice"),
        ("", "neither tcp"),
    ],
)
def test_an_address_that_others_could_reach_or_that_is_none_is_refused(address, said):
    with pytest.raises(ConfigError, match=said):
        KvEventsMonitor(KvEventsSettings(endpoint=address))


def test_an_address_in_use_is_an_error_that_names_it():
    with publishing() as (_, addresses):
        own = {"endpoint": addresses[0], "replay_endpoint": "tcp://127.0.0.1:1"}
        monitor = KvEventsMonitor(KvEventsSettings(**own))
        with pytest.raises(ConfigError, match=rf"cannot publish on {addresses[0]}: Address"):
            monitor.observer("m")
        monitor.close()


@pytest.mark.posix
def test_a_local_socket_is_for_its_user_alone_and_replaces_no_file(socket_folder: Path):
    own = {f"{each}endpoint": f"ipc://{socket_folder}/{each}events" for each in ("", "replay_")}
    with publishing(**own), subscribers() as connect:
        reader = connect(*own.values())
        reader.recover()
        assert reader.last == 0
        for name in ("events", "replay_events"):
            assert stat.S_IMODE((socket_folder / name).stat().st_mode) == 0o600
    (socket_folder / "other").write_text("x")
    other = {**own, "endpoint": f"ipc://{socket_folder}/other"}
    monitor = KvEventsMonitor(KvEventsSettings(**other))
    with pytest.raises(ConfigError, match="exists and is no socket"):
        monitor.observer("m")
    monitor.close()
    assert (socket_folder / "other").read_text() == "x"


class TestKvEventsMonitor(MonitorContract):
    def make(self):
        ports = free_ports(2)
        events, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        return KvEventsMonitor(KvEventsSettings(endpoint=events, replay_endpoint=replay))


def test_a_server_of_several_models_takes_an_address_for_each():
    ports = free_ports(4)
    models = {
        name: ModelEndpoints(
            endpoint=f"tcp://127.0.0.1:{ports[i]}",
            replay_endpoint=f"tcp://127.0.0.1:{ports[i + 1]}",
        )
        for name, i in (("a", 0), ("b", 2))
    }
    monitor = KvEventsMonitor(KvEventsSettings(models=models))
    try:
        with subscribers() as connect:
            for name, key in (("a", b"1" * 32), ("b", b"2" * 32)):
                observer = monitor.observer(name)
                block = CacheBlock(key, b"", (1,))
                observer.blocks(CacheChange((block,), is_cleared=True), time.time())
                reader = connect(models[name].endpoint, models[name].replay_endpoint)
                reader.read(0)
                assert reader.index == expected({key: block})
    finally:
        monitor.close()
