"""A room that strangers share: never over its bound, and never closed by who takes all of it."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from vlmkit.running.scheduling.fair_share import RESERVE_DIVISOR
from vlmkit_server.http.errors import Overloaded
from vlmkit_server.http.quota import LOOKS, Quota


@dataclass(eq=False)
class Someone:
    caller: str
    can_leave: bool = True
    is_idle: bool = False
    has_left: bool = field(default=False, init=False)

    def leave(self):
        self.has_left = True


def taken(room, caller, count, **how):
    guests = [Someone(caller, **how) for _ in range(count)]
    return [guest for guest in guests if room.take(guest, 1)]


def test_all_of_it_can_be_used_by_one():
    room = Quota(10)
    assert len(taken(room, "one", 12)) == 10


def test_who_has_most_makes_way_for_who_has_less_until_they_have_the_same():
    room = Quota(10)
    hog = taken(room, "hog", 10)
    assert len(taken(room, "other", 10)) == 5
    assert [guest.has_left for guest in hog] == [True] * 5 + [False] * 5


def test_who_cannot_leave_stays():
    room = Quota(3)
    hog = taken(room, "hog", 3, can_leave=False)
    assert not room.take(Someone("other"), 1)
    assert not any(guest.has_left for guest in hog)


def test_of_ones_own_only_the_idle_make_way():
    room = Quota(3)
    first, second, third = (Someone("one", is_idle=number == 1) for number in range(3))
    assert all(room.take(guest, 1) for guest in (first, second, third))
    assert [room.take(Someone("one"), 1) for _ in range(2)] == [True, False]
    assert [guest.has_left for guest in (first, second, third)] == [False, True, False]


def test_of_those_who_have_as_much_only_the_idle_make_way():
    room = Quota(3)
    guests = [Someone(caller, is_idle=caller == "b") for caller in "abc"]
    assert all(room.take(guest, 1) for guest in guests)
    assert [room.take(Someone(caller), 1) for caller in "de"] == [True, False]
    assert [guest.has_left for guest in guests] == [False, True, False]


def test_an_idle_one_among_many_who_are_busy_is_found_in_a_few_tries():
    room = Quota(10 * LOOKS)
    for caller in ("one", "two"):  # of two who hold the same
        assert len(taken(room, caller, 5 * LOOKS, can_leave=False)) == 5 * LOOKS
    room.give_back(next(reversed(room._guests["two"])))
    assert room.take(Someone("two", is_idle=True), 1)
    assert any(room.take(Someone("three"), 1) for _ in range(10))


def test_for_want_of_files_only_the_idle_make_way():
    room = Quota(10)
    busy, idle = taken(room, "one", 3), taken(room, "two", 2, is_idle=True)
    assert [room.make_way() for _ in range(3)] == [True, True, False]
    assert all(guest.has_left for guest in idle)
    assert not any(guest.has_left for guest in busy)
    assert room.num_held == 3


def test_what_is_larger_than_the_room_moves_nobody_who_has_less():
    room = Quota(10)
    small = Someone("small")
    assert room.take(small, 4)
    assert not room.take(Someone("large"), 11)
    assert not small.has_left


MOVES = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.integers(0, 6), st.booleans(), st.booleans(), st.booleans()
    )
)


@given(st.integers(1, 20), MOVES)
def test_the_books_balance_whatever_is_done(most, moves):
    room, inside = Quota(most), {}
    for caller, amount, can_leave, is_idle, goes in moves:
        if goes and inside:
            guest = next(iter(inside))
            room.give_back(guest)
            room.give_back(guest)  # is nothing
            del inside[guest]
            continue
        guest = Someone(caller, can_leave, is_idle)
        if room.take(guest, amount):
            inside[guest] = amount
        for gone in [other for other in inside if other.has_left]:
            assert gone.can_leave or gone.is_idle
            del inside[gone]
        assert room.num_held == sum(inside.values()) <= most
        assert len(room._by_caller) <= len(inside)
    for guest in inside:
        room.give_back(guest)
    assert room.num_held == 0


def claimed(room, caller, count, amount=1):
    claims = []
    for _ in range(count):
        try:
            claims.append(room.claim(caller, amount))
        except Overloaded:
            break
    return claims


def test_what_cannot_be_taken_back_is_left_in_part_to_others():
    room = Quota(80)
    hog = claimed(room, "hog", 80)
    assert len(hog) == 70
    assert len(claimed(room, "other", 80)) == 10  # all that there is, since it has less
    assert not room.fits("hog")
    for claim in hog[:60]:
        claim.release()
    assert len(claimed(room, "hog", 80)) == 50  # the eighth that is left is not the one of before


def test_a_small_room_can_be_used_whole_by_one():
    assert len(claimed(Quota(7), "one", 9)) == 7


def test_a_claim_is_over_however_its_work_ends():
    room = Quota(3)
    with pytest.raises(KeyError), room.claim("one", 2):
        raise KeyError
    assert room.num_held == 0
    claim = room.claim("one", 2)
    claim.release()
    claim.release()
    assert (room.num_held, room.held_by("one")) == (0, 0)


def test_who_is_refused_is_told_when_to_come_back():
    room = Quota(1, "too many of these")
    with room.claim("one"), pytest.raises(Overloaded, match="too many of these") as refused:
        room.claim("other")
    assert refused.value.retry_after_s >= 1


def test_who_waits_gets_in_when_there_is_room_and_who_has_least_is_next():
    async def scene():
        room, order = Quota(16), []

        async def use(caller, amount):
            with await room.wait(caller, amount):
                order.append(caller)

        with room.claim("hog", 10):
            own = room.claim("hog", 2)
            tasks = [asyncio.ensure_future(use("hog", 5)) for _ in range(2)]
            tasks.append(asyncio.ensure_future(use("other", 5)))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):  # nobody passes those who wait
                room.claim("third")
            own.release()
            await tasks[-1]
            assert order == ["other"]
        await asyncio.gather(*tasks)
        return room.num_held, len(order), room._waiting

    assert asyncio.run(scene()) == (0, 3, {})


def test_who_stops_waiting_holds_nothing_and_keeps_nobody_back():
    async def scene():
        room = Quota(10)
        with room.claim("one", 5):
            large = asyncio.ensure_future(room.wait("large", 10))
            await asyncio.sleep(0)
            small = asyncio.ensure_future(room.wait("small", 2))
            await asyncio.sleep(0)
            assert not small.done()  # whoever is next is not passed, or would wait for ever
            large.cancel()
            (await small).release()
            late = asyncio.ensure_future(room.wait("late", 9))
            await asyncio.sleep(0)
        late.cancel()  # when it has its part already
        await asyncio.gather(large, late, return_exceptions=True)
        with pytest.raises(Overloaded):
            await room.wait("one", 11)
        return room.num_held, room._waiting

    assert asyncio.run(scene()) == (0, {})


CLAIMS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 30), st.booleans()))


@given(st.integers(1, 60), CLAIMS)
def test_of_what_is_claimed_nobody_has_all_while_there_is_more_to_share(most, moves):
    room, inside = Quota(most), []
    with ExitStack() as all_of_them:
        for caller, amount, goes in moves:
            if goes and inside:
                inside.pop()[1].release()
                continue
            own = room.held_by(caller)
            try:
                claim = room.claim(caller, amount)
            except Overloaded:
                # It does not fit, or it would leave too little to others who come.
                left = most - room.num_held - amount
                assert left < 0 or (left < most // RESERVE_DIVISOR and own + amount > most // 6)
                continue
            inside.append((amount, all_of_them.enter_context(claim)))
            assert room.num_held == sum(each for each, _ in inside) <= most
    assert (room.num_held, room._by_caller, room._guests) == (0, {}, {})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.integers(0, 5))))
def test_everybody_who_waits_gets_in(wishes):
    async def scene():
        room = Quota(20)

        async def use(caller, amount, num_pauses):
            with await room.wait(caller, amount):
                assert room.num_held <= room.most
                for _ in range(num_pauses):
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(use(*wish)) for wish in wishes]
        for task in tasks[::3]:
            await asyncio.sleep(0)
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [each for each in done if isinstance(each, Exception)]
        return room.num_held, room._waiting

    assert asyncio.run(scene()) == (0, {})
