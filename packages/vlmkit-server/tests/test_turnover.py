"""When to come back is worked out from how fast a room empties, and holds."""

from hypothesis import given, strategies as st

from vlmkit_server.http.drain_rate import LAST, LONGEST_S, MOST_CALLERS, DrainRate


class Played:
    """A room whose time is played."""

    def __init__(self):
        self.now_s = 1000.0
        self.turnover = DrainRate(lambda: self.now_s)
        self.turnover.begin()

    def pass_by(self, num, *, every_s):
        for _ in range(num):
            self.now_s += every_s
            self.turnover.end(1)

    def turn_s(self, caller="one", amount=1, *, lacking=1, held=100, num_callers=1):
        return self.turnover.turn_s(
            caller, amount, lacking=lacking, held=held, num_callers=num_callers
        )


def test_who_is_refused_comes_back_as_soon_as_enough_is_given_back():
    room = Played()
    room.pass_by(10, every_s=4.0)
    assert room.turn_s("one") == 4
    assert room.turn_s("other", lacking=3) == 12


def test_many_who_are_refused_come_back_one_after_the_other():
    room = Played()
    room.pass_by(20, every_s=2.0)
    assert [room.turn_s() for _ in range(4)] == [2, 4, 6, 8]


def test_who_asks_without_end_makes_nobody_else_wait():
    room = Played()
    room.pass_by(20, every_s=2.0)
    assert max(room.turn_s("hog") for _ in range(1000)) == 200  # all of it is given back by then
    assert room.turn_s("other") == 2


def test_who_only_looks_takes_no_turn():
    room = Played()
    room.pass_by(20, every_s=2.0)
    told = [
        room.turnover.turn_s("one", 1, lacking=1, held=9, num_callers=1, is_noted=False)
        for _ in range(5)
    ]
    assert told == [2] * 5
    assert room.turn_s() == 2


def test_callers_share_what_is_given_back():
    room = Played()
    room.pass_by(20, every_s=2.0)
    assert [room.turn_s(num_callers=3) for _ in range(3)] == [2, 8, 14]


def test_what_takes_longer_and_longer_is_waited_for_as_long_again():
    room = Played()
    room.now_s += 30.0
    assert room.turn_s() == 30


def test_what_was_long_ago_tells_nothing():
    room = Played()
    room.pass_by(LAST * 2, every_s=100.0)
    room.pass_by(LAST, every_s=1.0)
    assert room.turn_s() in (1, 2)
    room.turnover.begin()
    room.pass_by(2, every_s=7.0)
    assert room.turn_s("other") == 7


def test_callers_who_never_come_back_are_forgotten():
    room = Played()
    room.pass_by(5, every_s=1.0)
    for number in range(MOST_CALLERS * 2):
        room.turn_s(f"{number}")
        room.now_s += 1.0
    assert len(room.turnover._turns) <= MOST_CALLERS


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 5), st.integers(1, 10**9))))
def test_it_is_always_a_time_that_can_be_waited(steps):
    room = Played()
    for pause_s, num_ends, amount in steps:
        room.now_s += pause_s
        for _ in range(num_ends):
            room.turnover.end(amount)
        assert 1 <= room.turn_s(amount=amount, lacking=amount, held=amount) <= LONGEST_S
