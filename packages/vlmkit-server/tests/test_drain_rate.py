"""Retry times follow from the drain rate of a quota, and are kept."""

from hypothesis import given, strategies as st

from vlmkit_server.http.quota import MAX_CALLERS, MAX_RETRY_S, NUM_RELEASES, DrainRate


class FakeDrain:
    """A drain rate with a clock that the test sets."""

    def __init__(self):
        self.now_s = 1000.0
        self.rate = DrainRate(lambda: self.now_s)
        self.rate.begin()

    def pass_by(self, num, *, every_s):
        for _ in range(num):
            self.now_s += every_s
            self.rate.end(1)

    def retry_after_s(self, caller="one", amount=1, *, lacking=1, held=100, num_callers=1):
        return self.rate.retry_after_s(
            caller, amount, lacking=lacking, held=held, num_callers=num_callers
        )


def test_retry_after_is_the_time_in_which_enough_is_released():
    drain = FakeDrain()
    drain.pass_by(10, every_s=4.0)
    assert drain.retry_after_s("one") == 4
    assert drain.retry_after_s("other", lacking=3) == 12


def test_slots_are_given_to_refused_callers_in_order():
    drain = FakeDrain()
    drain.pass_by(20, every_s=2.0)
    assert [drain.retry_after_s() for _ in range(4)] == [2, 4, 6, 8]


def test_a_caller_that_retries_endlessly_does_not_delay_others():
    drain = FakeDrain()
    drain.pass_by(20, every_s=2.0)
    assert (
        max(drain.retry_after_s("hog") for _ in range(1000)) == 200
    )  # everything is released by then
    assert drain.retry_after_s("other") == 2


def test_a_query_without_reservation_takes_no_slot():
    drain = FakeDrain()
    drain.pass_by(20, every_s=2.0)
    retries = [
        drain.rate.retry_after_s("one", 1, lacking=1, held=9, num_callers=1, is_reserved=False)
        for _ in range(5)
    ]
    assert retries == [2] * 5
    assert drain.retry_after_s() == 2


def test_callers_share_released_slots():
    drain = FakeDrain()
    drain.pass_by(20, every_s=2.0)
    assert [drain.retry_after_s(num_callers=3) for _ in range(3)] == [2, 8, 14]


def test_retry_after_without_a_release_is_the_time_since_the_start():
    drain = FakeDrain()
    drain.now_s += 30.0
    assert drain.retry_after_s() == 30


def test_old_releases_do_not_count():
    drain = FakeDrain()
    drain.pass_by(NUM_RELEASES * 2, every_s=100.0)
    drain.pass_by(NUM_RELEASES, every_s=1.0)
    assert drain.retry_after_s() in (1, 2)
    drain.rate.begin()
    drain.pass_by(2, every_s=7.0)
    assert drain.retry_after_s("other") == 7


def test_callers_that_never_return_are_forgotten():
    drain = FakeDrain()
    drain.pass_by(5, every_s=1.0)
    for number in range(MAX_CALLERS * 2):
        drain.retry_after_s(f"{number}")
        drain.now_s += 1.0
    assert len(drain.rate._slots) <= MAX_CALLERS


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 5), st.integers(1, 10**9))))
def test_the_retry_time_is_always_bounded(steps):
    drain = FakeDrain()
    for pause_s, num_releases, amount in steps:
        drain.now_s += pause_s
        for _ in range(num_releases):
            drain.rate.end(amount)
        assert 1 <= drain.retry_after_s(amount=amount, lacking=amount, held=amount) <= MAX_RETRY_S
