"""The decode memory limiter: its bounds hold, tenants share fairly, and memory is given back."""

import asyncio
import gc
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vlmkit.errors import OutOfMemory, RequestCancelled
from vlmkit.image_files.decode_cost import DecodeCost
from vlmkit.running.scheduling.decode_memory import DecodeMemoryLimiter, memory_needed
from vlmkit.types.image import Image

MOST = 100


def prompt_of(num_bytes):
    slot = SimpleNamespace(inputs={"pixels": np.zeros(num_bytes, np.uint8)})
    return SimpleNamespace(media=(slot,))


def is_granted(lease):
    return lease.granted.done()


class Limiter(RuleBasedStateMachine):
    """The bound holds and no lease waits beside free memory, for any order of leases."""

    def __init__(self):
        super().__init__()
        self.limiter = DecodeMemoryLimiter(MOST, 1000)
        self.leases = []
        self.kept = []

    @rule(tenant=st.sampled_from("abc"), num_bytes=st.integers(1, MOST))
    def lease(self, tenant, num_bytes):
        self.leases.append(self.limiter.lease(tenant, num_bytes))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), again=st.booleans())
    def release(self, data, again):
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        if again:
            lease.release()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), num_bytes=st.integers(1, MOST))
    def resize(self, data, num_bytes):
        lease = self.leases[data.draw(st.integers(0, len(self.leases) - 1))]
        if is_granted(lease):
            self.limiter.resize(lease, num_bytes)

    @rule(num_bytes=st.integers(0, 600))
    def track(self, num_bytes):
        lease = self.limiter.lease("a", 0)
        self.kept.append(prompt_of(num_bytes))
        lease.track(self.kept[-1])

    @precondition(lambda self: self.kept)
    @rule()
    def forget(self):
        self.kept.pop(0)

    @invariant()
    def counted_bytes_are_the_bytes_in_use(self):
        inside = [lease for lease in self.leases if is_granted(lease)]
        assert self.limiter.decoding_bytes == sum(lease.num_bytes for lease in inside) <= MOST
        held = sum(p.media[0].inputs["pixels"].nbytes for p in self.kept)
        assert self.limiter.prepared_bytes == held

    @invariant()
    def some_lease_is_granted_where_any_waits(self):
        if self.leases and self.limiter.prepared_bytes <= 1000:
            assert any(is_granted(lease) for lease in self.leases)


TestLimiter = Limiter.TestCase
TestLimiter.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_tenant_with_the_least_memory_is_next():
    limiter = DecodeMemoryLimiter(MOST, 1)
    first = [limiter.lease("greedy", 50) for _ in range(10)]
    honest = limiter.lease("honest", 50)
    assert [is_granted(lease) for lease in first] == [True] * 2 + [False] * 8
    first[0].release()
    assert is_granted(honest)
    assert sum(map(is_granted, first)) == 2


def test_a_request_that_needs_more_than_the_limit_runs_alone():
    limiter = DecodeMemoryLimiter(MOST, 1)
    small = limiter.lease("", 1)
    large, another = limiter.lease("", 5 * MOST), limiter.lease("", 1)
    assert [is_granted(lease) for lease in (small, large, another)] == [True, False, False]
    small.release()
    assert [is_granted(lease) for lease in (large, another)] == [True, False]
    large.release()
    assert is_granted(another)
    another.enlarge(3 * MOST, 0.1)
    assert limiter.decoding_bytes == 3 * MOST


def test_a_lease_that_waits_for_more_memory_holds_none_meanwhile():
    limiter = DecodeMemoryLimiter(MOST, 1)
    first, second = limiter.lease("", 60), limiter.lease("", 40)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(lease.enlarge, 80, 60) for lease in (first, second)]
        done = next(as_completed(both))
        assert limiter.decoding_bytes == 80
        (first if done is both[0] else second).release()
        wait(both)
    assert limiter.decoding_bytes == 80
    with pytest.raises(OutOfMemory):
        limiter.lease("", 0).enlarge(30, 0.01)
    cancelled = limiter.lease("", 0)
    cancelled.cancellation.cancel()
    with pytest.raises(RequestCancelled):
        cancelled.enlarge(30, 60)


def test_tenants_take_turns_if_each_request_needs_the_whole_limit():
    limiter = DecodeMemoryLimiter(MOST, 1)
    greedy = [limiter.lease("greedy", 2 * MOST) for _ in range(10)]
    honest = [limiter.lease("honest", MOST) for _ in range(2)]
    order = []
    while inside := [
        lease for lease in (*greedy, *honest) if is_granted(lease) and lease not in order
    ]:
        order += inside
        inside[0].release()
    assert [lease.tenant for lease in order[:5]] == [
        "greedy",
        "honest",
        "greedy",
        "honest",
        "greedy",
    ]
    assert len(order) == 12


def test_grants_of_absent_tenants_are_forgotten():
    limiter = DecodeMemoryLimiter(MOST, 1)
    for number in range(100):
        limiter.lease(f"tenant {number}", 2 * MOST).release()
    assert not limiter._last_grants


def costing(*costs):
    return [Image((1, 1), bytes([i]), cost=DecodeCost(*cost)) for i, cost in enumerate(costs)]


def test_images_are_decoded_sequentially_where_parallel_decoding_needs_too_much_memory():
    assert memory_needed(costing((30, 10), (60, 40)), MOST) == (90, False)
    assert memory_needed(costing((60, 20), (70, 40)), MOST) == (60 + 40, True)
    assert memory_needed(costing((700, 40)), MOST) == (700, True)
    assert memory_needed(costing((30, 10, 50), (60, 40, 45)), MOST) == (100, False)
    assert memory_needed(costing((60, 20)) * 3, MOST) == (60, False)
    assert memory_needed([], MOST) == (0, False)


def test_a_lease_that_times_out_fails_and_leaves_the_queue():
    limiter = DecodeMemoryLimiter(MOST, 1)
    first, second = limiter.lease("", MOST), limiter.lease("", 1)
    with pytest.raises(OutOfMemory):
        asyncio.run(second.wait(0.01))
    second.release()
    first.release()
    assert second.granted.cancelled()
    assert limiter.decoding_bytes == 0


def test_a_tenant_with_too_many_prepared_bytes_gets_no_new_lease():
    limiter = DecodeMemoryLimiter(MOST, 10)
    kept = prompt_of(11)
    limiter.lease("", 0).track(kept)
    lease, another = limiter.lease("", 1), limiter.lease("another tenant", 1)
    assert not is_granted(lease)
    assert is_granted(another)
    del kept
    gc.collect()
    assert is_granted(lease)


def test_threads_leave_no_leases_behind():
    limiter = DecodeMemoryLimiter(MOST, 10_000)
    done = Counter()

    def work(tenant):
        for number in range(200):
            lease = limiter.lease(tenant, 0)
            lease.enlarge(1 + number % 60, 60)
            assert 0 < limiter.decoding_bytes <= MOST
            lease.track(prompt_of(number))
            lease.release()
            done[tenant] += 1

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert (limiter.decoding_bytes, limiter.prepared_bytes) == (0, 0)
    assert done.total() == 1200
