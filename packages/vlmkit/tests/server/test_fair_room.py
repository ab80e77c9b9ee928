"""A room that strangers share: never over its bound, and never closed by who takes all of it."""

from dataclasses import dataclass, field

from hypothesis import given, strategies as st

from vlmkit.server.http.fair_room import FairRoom


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
    room = FairRoom(10)
    assert len(taken(room, "one", 12)) == 10


def test_who_has_most_makes_way_for_who_has_less_until_they_have_the_same():
    room = FairRoom(10)
    hog = taken(room, "hog", 10)
    assert len(taken(room, "other", 10)) == 5
    assert [guest.has_left for guest in hog] == [True] * 5 + [False] * 5


def test_who_cannot_leave_stays():
    room = FairRoom(3)
    hog = taken(room, "hog", 3, can_leave=False)
    assert not room.take(Someone("other"), 1)
    assert not any(guest.has_left for guest in hog)


def test_of_ones_own_only_the_idle_make_way():
    room = FairRoom(3)
    first, second, third = (Someone("one", is_idle=number == 1) for number in range(3))
    assert all(room.take(guest, 1) for guest in (first, second, third))
    assert [room.take(Someone("one"), 1) for _ in range(2)] == [True, False]
    assert [guest.has_left for guest in (first, second, third)] == [False, True, False]


def test_what_is_larger_than_the_room_moves_nobody_who_has_less():
    room = FairRoom(10)
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
    room, inside = FairRoom(most), {}
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
            assert gone.can_leave or (gone.is_idle and gone.caller == caller)
            del inside[gone]
        assert room.num_held == sum(inside.values()) <= most
        assert len(room._by_caller) <= len(inside)
    for guest in inside:
        room.give_back(guest)
    assert room.num_held == 0
