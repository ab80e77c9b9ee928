"""Pictures wait for room before they are decoded, in turns, and what is done is given back."""

import gc
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.running.media_room import MediaRoom

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
        self.room = MediaRoom(MOST, 1000)
        self.places = []
        self.kept = []

    @rule(tenant=st.sampled_from("abc"), num_pixels=st.integers(1, MOST))
    def ask(self, tenant, num_pixels):
        self.places.append(self.room.ask(tenant, num_pixels))

    @precondition(lambda self: self.places)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data, again):
        place = self.places.pop(data.draw(st.integers(0, len(self.places) - 1)))
        place.leave()
        if again:
            place.leave()

    @precondition(lambda self: self.places)
    @rule(data=st.data(), num_pixels=st.integers(0, MOST))
    def grow(self, data, num_pixels):
        place = self.places[data.draw(st.integers(0, len(self.places) - 1))]
        if is_inside(place):
            before = place.num_pixels
            assert place.grow(num_pixels) or place.num_pixels == before

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
        assert self.room.num_pixels == sum(place.num_pixels for place in inside) <= MOST
        held = sum(p.media[0].inputs["pixels"].nbytes for p in self.kept)
        assert self.room.num_bytes == held

    @invariant()
    def somebody_is_let_in_where_nobody_is(self):
        if self.places and self.room.num_bytes <= 1000:
            assert any(is_inside(place) for place in self.places)


TestRooms = Rooms.TestCase
TestRooms.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_turn_is_that_of_who_has_least():
    room = MediaRoom(MOST, 1)
    first = [room.ask("greedy", 50) for _ in range(10)]
    honest = room.ask("honest", 50)
    assert [is_inside(place) for place in first] == [True] * 2 + [False] * 8
    first[0].leave()
    assert is_inside(honest)
    assert sum(map(is_inside, first)) == 2


def test_who_wants_more_than_there_is_at_all_is_refused_at_once():
    room = MediaRoom(MOST, 1)
    with pytest.raises(ImageError) as caught:
        room.ask("", MOST + 1)
    assert caught.value.code == "image_too_large"
    place = room.ask("", MOST)
    with pytest.raises(ImageError):
        place.grow(MOST + 1)
    assert room.num_pixels == MOST


def test_who_waits_in_vain_is_told_to_come_again_and_waits_no_more():
    room = MediaRoom(MOST, 1)
    first, second = room.ask("", MOST), room.ask("", 1)
    with pytest.raises(OutOfMemory):
        second.wait(0.01)
    second.leave()
    first.leave()
    assert not second.granted.done()
    assert room.num_pixels == 0


def test_nobody_begins_of_whose_pictures_too_much_is_kept():
    room = MediaRoom(MOST, 10)
    kept = prompt_of(11)
    room.ask("", 0).keep(kept)
    place, another = room.ask("", 1), room.ask("another tenant", 1)
    assert not is_inside(place)
    assert is_inside(another)
    del kept
    gc.collect()
    assert is_inside(place)


def test_threads_leave_nothing_behind():
    room = MediaRoom(MOST, 10_000)
    done = Counter()

    def work(tenant):
        for number in range(200):
            place = room.ask(tenant, 1 + number % 60)
            place.wait(60)
            assert 0 < room.num_pixels <= MOST
            place.keep(prompt_of(number))
            place.leave()
            done[tenant] += 1

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert (room.num_pixels, room.num_bytes) == (0, 0)
    assert done.total() == 1200
