"""What watchers of a real worker learn of its load and its cache."""

import grpc
import pytest
from test_worker import channel, load

import vlmkit
from mock_model import picture, script, wait_until
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.kit.cache_index import CacheIndex
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit_grpc.channel_options import PIECE_BYTES
from vlmkit_grpc.protocol.worker_pb2 import DrainRequest, WatchRequest
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerStub
from vlmkit_grpc.watch import MAX_CHANGES, CacheObserver, CacheWatcher, _parts
from workers import worker

pytestmark = pytest.mark.posix


@pytest.fixture(scope="module")
def process():
    with worker("--set", "worker.cache_events=true") as process:
        yield process


def watched(process, *, with_cache=False):
    return WorkerStub(channel(process)).Watch(WatchRequest(with_cache=with_cache), timeout=120)


def change_of(reply):
    stored = tuple(
        CacheBlock(each.key, each.parent, tuple(each.token_ids), tuple(each.media), each.scope)
        for each in reply.cache.stored
    )
    return CacheChange(stored, tuple(reply.cache.removed), reply.cache.is_cleared)


def test_the_load_has_the_tokens_that_wait_and_the_sequences(process):
    with load(process) as model:
        slow = script(text="abc", prefill_latency_s=1.0)
        asked = model.request(slow)
        call = watched(process)
        stream = model.submit(asked)
        loads = []
        for reply in call:
            loads.append(reply.load)
            assert reply.number == len(loads)
            assert not reply.HasField("cache")
            if len(loads) > 1 and not reply.load.num_running and not reply.load.waiting_tokens:
                break
        call.cancel()
        assert max(each.waiting_tokens for each in loads) == stream.usage.prompt_tokens
        assert max(each.num_running for each in loads) == 1
        assert loads[0].num_free_tokens > 0
        assert not loads[0].is_draining


def test_a_watcher_rebuilds_the_index_of_the_cache(process):
    with load(process) as model:
        model.generate("one two three " * 20)
        call = watched(process, with_cache=True)
        index, first = CacheIndex(), next(call)
        assert first.cache.is_cleared
        index.apply(change_of(first))
        before = len(index.blocks)
        model.generate("four five six " * 20, images=[picture()])
        for reply in call:
            index.apply(change_of(reply))
            if len(index.blocks) >= before + 10 and any(b.media for b in index.blocks.values()):
                break
        call.cancel()
        again = CacheIndex()
        later = watched(process, with_cache=True)
        again.apply(change_of(next(later)))
        later.cancel()
        assert again.blocks.keys() >= index.blocks.keys()
        assert all(again.blocks[key] == block for key, block in index.blocks.items())
        assert all(block.scope and block.tokens for block in index.blocks.values())


def test_the_cache_of_a_worker_is_not_shown_unless_its_operator_allows_it():
    with worker() as process:
        call = watched(process, with_cache=True)
        with pytest.raises(grpc.RpcError) as found:
            next(call)
        assert found.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        call = watched(process)
        assert next(call).number == 1
        assert WorkerStub(channel(process)).Drain(DrainRequest(timeout_s=5.0)).is_empty
        assert list(call)[-1].load.is_draining
        assert process.ended() == 0


def blocks(num, first=0):
    return tuple(CacheBlock(bytes([n % 256, n // 256]), b"", (n,) * 256) for n in range(first, num))


def test_a_watcher_that_does_not_read_holds_few_changes_and_gets_the_whole_cache():
    cache, slow, quick = CacheObserver(), CacheWatcher(), CacheWatcher()
    for watcher in (slow, quick):
        cache.join(watcher)
        assert [each.is_cleared for each in cache.take(watcher)] == [True]
    index = CacheIndex()
    for n in range(2 * MAX_CHANGES):
        removed = (bytes([(n - 50) % 256, (n - 50) // 256]),) if n >= 50 else ()
        cache.blocks(CacheChange(blocks(n + 1, n), removed), 0.0)
        assert len(slow.changes) <= MAX_CHANGES
        for change in cache.take(quick):
            index.apply(change)
    (whole,) = cache.take(slow)
    assert whole.is_cleared
    assert {block.key for block in whole.stored} == index.blocks.keys()
    assert len(index.blocks) == 50
    cache.leave(slow)
    cache.blocks(CacheChange(blocks(1)), 0.0)
    assert not cache.take(slow)


@pytest.mark.parametrize(("num_stored", "num_removed"), [(0, 0), (1, 1), (950, 5000), (0, 3000)])
def test_a_large_change_is_sent_in_parts_with_the_same_effect(num_stored, num_removed):
    removed = tuple(n.to_bytes(32, "big") for n in range(num_removed))
    change = CacheChange(blocks(num_stored), removed, is_cleared=True)
    parts = [*_parts(change)]
    assert all(part.ByteSize() < PIECE_BYTES for part in parts)
    assert [part.is_cleared for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [key for part in parts for key in part.removed] == [*removed]
    assert [each.key for part in parts for each in part.stored] == [b.key for b in change.stored]
    first_stored = next((i for i, part in enumerate(parts) if part.stored), len(parts))
    assert not any(part.removed for part in parts[first_stored + 1 :])


def test_a_fleet_sees_what_other_gateways_have_sent_to_a_worker():
    with worker() as busy, worker() as idle:
        fleet = f"grpc://{busy.address},{idle.address}"
        with vlmkit.load(fleet) as model, load(busy) as other:
            slow = Message.of("user", script(text="abc", prefill_latency_s=8.0))
            asked = Request(messages=[Message.of("system", "x" * 2000), slow])
            stream = other.runner.submit(asked)
            first, second = model.runner._workers
            route = model.runner._route(model.request("hello"), None)
            wait_until(lambda: first.candidate(route).queue_tokens > 2000)
            assert not second.candidate(route).queue_tokens
            stream.abort()
