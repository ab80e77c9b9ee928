"""Pictures wait for room before they are decoded, in turns, and what is done is given back."""

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
from vlmkit.running.scheduling.decode_memory import DecodeMemoryLimiter, needed
from vlmkit.types.image import Image

MOST = 100


def prompt_of(num_bytes):
    slot = SimpleNamespace(inputs={"pixels": np.zeros(num_bytes, np.uint8)})
    return SimpleNamespace(media=(slot,))


def is_inside(place):
    return place.granted.done()


class Rooms(RuleBasedStateMachine):
    """Whatever comes and goes: the bound holds, and nobody waits beside room that is his."""

    def __init__(self):
        super().__init__()
        self.room = DecodeMemoryLimiter(MOST, 1000)
        self.places = []
        self.kept = []

    @rule(tenant=st.sampled_from("abc"), num_bytes=st.integers(1, MOST))
    def ask(self, tenant, num_bytes):
        self.places.append(self.room.ask(tenant, num_bytes))

    @precondition(lambda self: self.places)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data, again):
        place = self.places.pop(data.draw(st.integers(0, len(self.places) - 1)))
        place.leave()
        if again:
            place.leave()

    @precondition(lambda self: self.places)
    @rule(data=st.data(), num_bytes=st.integers(1, MOST))
    def exchange(self, data, num_bytes):
        place = self.places[data.draw(st.integers(0, len(self.places) - 1))]
        if is_inside(place):
            self.room.exchange(place, num_bytes)

    @rule(num_bytes=st.integers(0, 600))
    def keep(self, num_bytes):
        place = self.room.ask("a", 0)
        self.kept.append(prompt_of(num_bytes))
        place.keep(self.kept[-1])

    @precondition(lambda self: self.kept)
    @rule()
    def forget(self):
        self.kept.pop(0)

    @invariant()
    def what_is_taken_is_what_is_held(self):
        inside = [place for place in self.places if is_inside(place)]
        assert self.room.decoding_bytes == sum(place.num_bytes for place in inside) <= MOST
        held = sum(p.media[0].inputs["pixels"].nbytes for p in self.kept)
        assert self.room.num_bytes == held

    @invariant()
    def somebody_is_let_in_where_nobody_is(self):
        if self.places and self.room.num_bytes <= 1000:
            assert any(is_inside(place) for place in self.places)


TestRooms = Rooms.TestCase
TestRooms.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_turn_is_that_of_who_has_least():
    room = DecodeMemoryLimiter(MOST, 1)
    first = [room.ask("greedy", 50) for _ in range(10)]
    honest = room.ask("honest", 50)
    assert [is_inside(place) for place in first] == [True] * 2 + [False] * 8
    first[0].leave()
    assert is_inside(honest)
    assert sum(map(is_inside, first)) == 2


def test_a_request_that_needs_more_than_there_is_runs_alone():
    room = DecodeMemoryLimiter(MOST, 1)
    small = room.ask("", 1)
    large, another = room.ask("", 5 * MOST), room.ask("", 1)
    assert [is_inside(place) for place in (small, large, another)] == [True, False, False]
    small.leave()
    assert [is_inside(place) for place in (large, another)] == [True, False]
    large.leave()
    assert is_inside(another)
    another.enlarge(3 * MOST, 0.1)
    assert room.decoding_bytes == 3 * MOST


def test_a_lease_that_needs_more_waits_for_it_and_holds_nothing_meanwhile():
    room = DecodeMemoryLimiter(MOST, 1)
    first, second = room.ask("", 60), room.ask("", 40)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(place.enlarge, 80, 60) for place in (first, second)]
        done = next(as_completed(both))
        assert room.decoding_bytes == 80
        (first if done is both[0] else second).leave()
        wait(both)
    assert room.decoding_bytes == 80
    with pytest.raises(OutOfMemory):
        room.ask("", 0).enlarge(30, 0.01)
    cancelled = room.ask("", 0)
    cancelled.cancellation.cancel()
    with pytest.raises(RequestCancelled):
        cancelled.enlarge(30, 60)


def test_tenants_take_turns_where_each_request_takes_all_there_is():
    room = DecodeMemoryLimiter(MOST, 1)
    greedy = [room.ask("greedy", 2 * MOST) for _ in range(10)]
    honest = [room.ask("honest", MOST) for _ in range(2)]
    order = []
    while inside := [
        place for place in (*greedy, *honest) if is_inside(place) and place not in order
    ]:
        order += inside
        inside[0].leave()
    assert [place.tenant for place in order[:5]] == [
        "greedy",
        "honest",
        "greedy",
        "honest",
        "greedy",
    ]
    assert len(order) == 12


def test_turns_of_tenants_that_are_gone_are_not_kept():
    room = DecodeMemoryLimiter(MOST, 1)
    for number in range(100):
        room.ask(f"tenant {number}", 2 * MOST).leave()
    assert not room._last_grants


def costing(*costs):
    return [Image((1, 1), bytes([i]), cost=DecodeCost(*cost)) for i, cost in enumerate(costs)]


def test_images_of_one_request_are_decoded_one_by_one_where_all_at_once_take_too_much():
    assert needed(costing((30, 10), (60, 40)), MOST) == (90, False)
    assert needed(costing((60, 20), (70, 40)), MOST) == (60 + 40, True)
    assert needed(costing((700, 40)), MOST) == (700, True)
    assert needed(costing((30, 10, 50), (60, 40, 45)), MOST) == (100, False)
    assert needed(costing((60, 20)) * 3, MOST) == (60, False)
    assert needed([], MOST) == (0, False)


def test_who_waits_in_vain_is_told_to_come_again_and_waits_no_more():
    room = DecodeMemoryLimiter(MOST, 1)
    first, second = room.ask("", MOST), room.ask("", 1)
    with pytest.raises(OutOfMemory):
        asyncio.run(second.awaited(0.01))
    second.leave()
    first.leave()
    assert second.granted.cancelled()
    assert room.decoding_bytes == 0


def test_nobody_begins_of_whose_pictures_too_much_is_kept():
    room = DecodeMemoryLimiter(MOST, 10)
    kept = prompt_of(11)
    room.ask("", 0).keep(kept)
    place, another = room.ask("", 1), room.ask("another tenant", 1)
    assert not is_inside(place)
    assert is_inside(another)
    del kept
    gc.collect()
    assert is_inside(place)


def test_threads_leave_nothing_behind():
    room = DecodeMemoryLimiter(MOST, 10_000)
    done = Counter()

    def work(tenant):
        for number in range(200):
            place = room.ask(tenant, 0)
            place.enlarge(1 + number % 60, 60)
            assert 0 < room.decoding_bytes <= MOST
            place.keep(prompt_of(number))
            place.leave()
            done[tenant] += 1

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert (room.decoding_bytes, room.num_bytes) == (0, 0)
    assert done.total() == 1200
