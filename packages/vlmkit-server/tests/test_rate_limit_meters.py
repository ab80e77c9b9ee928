"""Rate-limit meters under any sequence of events: no usage is lost, and none is negative."""

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vlmkit_server.http.errors import RateLimited
from vlmkit_server.rate_limits.cost import NOTHING, Cost
from vlmkit_server.rate_limits.headers import duration, limit_headers
from vlmkit_server.rate_limits.tenant_usage import TenantUsage
from vlmkit_server.rate_limits.tenants import MAX_ADDRESSES, TenantUsages
from vlmkit_server.settings.limits import LimitsSettings, limits_of

S = 10**9
NOON = int(datetime(2026, 2, 28, 12, tzinfo=UTC).timestamp()) * S


class FakeClock:
    """A clock that changes only when a test sets it."""

    def __init__(self, now_ns=NOON):
        self.now_ns = now_ns

    def __call__(self):
        return self.now_ns

    def pass_s(self, seconds):
        self.now_ns += int(seconds * S)


def usage(*texts, clock=None):
    return TenantUsage("this API key", limits_of(texts), clock or FakeClock())


def remaining(usage, unit="tokens"):
    return usage.standings()[unit].num_left


def test_a_rate_refills_evenly_and_a_quota_at_midnight():
    clock = FakeClock()
    both = usage("tokens=60/minute", "images=5/day", clock=clock)
    both.use(Cost(tokens=60, images=5))
    assert (remaining(both), remaining(both, "images")) == (0, 0)
    clock.pass_s(10)
    assert remaining(both) == 10
    clock.pass_s(12 * 3600 - 11)
    assert (remaining(both), remaining(both, "images")) == (60, 0)
    clock.pass_s(1)
    assert remaining(both, "images") == 5


def test_a_monthly_quota_is_reset_after_the_last_day_of_the_month():
    clock = FakeClock()
    monthly = usage("requests=1/month", clock=clock)
    monthly.use(Cost(requests=1))
    assert monthly.standings()["requests"].reset_s == 12 * 3600  # February has 28 days
    clock.pass_s(12 * 3600)
    assert remaining(monthly, "requests") == 1
    assert monthly.standings()["requests"].reset_s == 31 * 86_400


def test_a_request_is_admitted_exactly_after_retry_after():
    clock = FakeClock()
    limited = usage("tokens=7/minute", clock=clock)
    limited.use(Cost(tokens=7))
    with pytest.raises(RateLimited) as caught:
        limited.use(Cost(tokens=3))
    assert caught.value.retry_after_s == 26  # 60 s / 7 * 3 = 25.7
    clock.pass_s(25)
    with pytest.raises(RateLimited):
        limited.use(Cost(tokens=3))
    clock.pass_s(1)
    limited.use(Cost(tokens=3))


def test_a_request_larger_than_the_limit_gets_no_retry_time():
    for amount in ("0", "4"):
        with pytest.raises(RateLimited) as caught:
            usage(f"images={amount}/day").use(Cost(images=5))
        assert caught.value.retry_after_s is None


def test_an_unused_reservation_is_released_at_the_end():
    limited = usage("tokens=100/day")
    reservation = limited.reserve(Cost(tokens=90))
    assert remaining(limited) == 10
    with pytest.raises(RateLimited):
        limited.reserve(Cost(tokens=11))
    reservation.used = lambda: Cost(tokens=30)
    limited.end(reservation)
    limited.end(reservation)
    assert remaining(limited) == 70


def test_an_answer_at_the_permitted_rate_leaves_the_full_limit():
    clock = FakeClock()
    limited = usage("tokens=60/minute", clock=clock)
    reservation = limited.reserve(Cost(tokens=60))
    clock.pass_s(60)
    reservation.used = lambda: Cost(tokens=60)
    limited.end(reservation)
    assert remaining(limited) == 60


def test_a_request_is_counted_against_all_its_limits_or_none():
    limited = usage("tokens=10/minute", "tokens=15/day", "images=1/hour")
    with pytest.raises(RateLimited):
        limited.reserve(Cost(tokens=5, images=2))
    assert (remaining(limited), remaining(limited, "images")) == (10, 1)
    limited.use(Cost(tokens=9))
    assert limited.standings()["tokens"].most == 10


def test_changed_limits_keep_the_usage():
    limited = usage("tokens=10/day")
    limited.use(Cost(tokens=8))
    limited.change(limits_of(["tokens=20/day"]))
    assert remaining(limited) == 12
    limited.change(limits_of(["tokens=5/day"]))
    assert remaining(limited) == 0


def test_a_clock_that_is_set_back_neither_adds_nor_removes_usage():
    clock = FakeClock()
    limited = usage("tokens=60/minute", "tokens=100/day", clock=clock)
    limited.use(Cost(tokens=60))
    clock.pass_s(-86_400)
    assert remaining(limited) == 0
    clock.pass_s(60)
    assert remaining(limited) == 40


@pytest.mark.parametrize("texts", [["tokens=1/day", "tokens=2/day"], ["images=1/day"] * 2])
def test_two_limits_of_one_unit_and_period_are_refused(texts):
    with pytest.raises(ValueError, match="two limits"):
        LimitsSettings(key=tuple(texts))


class Machine(RuleBasedStateMachine):
    """Requests arrive, use part of their reservation, and end in any way while time passes."""

    @initialize(
        most=st.integers(0, 50),
        period=st.sampled_from(["minute", "hour", "day", "month"]),
    )
    def begin(self, most, period):
        self.clock = FakeClock()
        self.most = most
        self.is_quota = period in ("day", "month")
        self.usage = usage(f"tokens={most}/{period}", clock=self.clock)
        self.open = {}
        self.num_used = 0

    @rule(amount=st.integers(0, 60))
    def come(self, amount):
        free = remaining(self.usage)
        try:
            reservation = self.usage.reserve(Cost(tokens=amount))
        except RateLimited:
            assert amount > free
        else:
            assert amount <= free or amount == 0
            used = [0]
            reservation.used = lambda: Cost(tokens=used[0])
            self.open[reservation] = (amount, used)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data):
        most, used = self.open[data.draw(st.sampled_from(list(self.open)))]
        more = data.draw(st.integers(0, most - used[0]))
        used[0] += more
        self.num_used += more

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data):
        reservation = data.draw(st.sampled_from(list(self.open)))
        before = remaining(self.usage)
        del self.open[reservation]
        self.usage.end(reservation)
        assert remaining(self.usage) >= before

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds):
        self.clock.pass_s(seconds)

    @invariant()
    def all_is_accounted_for(self):
        if not hasattr(self, "usage"):
            return
        held = sum(most for most, _ in self.open.values())
        made = sum(used[0] for _, used in self.open.values())
        free = remaining(self.usage)
        assert 0 <= free <= self.most
        if self.is_quota:  # far from midnight
            assert free == self.most - self.num_used - (held - made)
        else:
            assert free <= self.most - (held - made)

    def teardown(self):
        if hasattr(self, "usage"):
            for reservation in list(self.open):
                self.usage.end(reservation)
            assert self.usage._reserved == NOTHING
            self.clock.pass_s(3600)
            if not self.is_quota:
                assert remaining(self.usage) == self.most


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 20)), max_size=40),
    st.integers(1, 20),
)
def test_any_minute_admits_at_most_a_full_bucket_and_its_refill(asked, most):
    clock = FakeClock()
    limited = usage(f"tokens={most}/minute", clock=clock)
    taken = []
    for seconds, amount in asked:
        clock.pass_s(seconds)
        try:
            limited.use(Cost(tokens=amount))
        except RateLimited:
            continue
        taken.append((clock.now_ns, amount))
    for start, _ in taken:
        within = sum(amount for at, amount in taken if start <= at <= start + 60 * S)
        assert within <= 2 * most


def test_concurrent_reservations_are_counted_exactly():
    limited = usage("tokens=100000/day")

    def ask():
        for _ in range(50):
            reservation = limited.reserve(Cost(tokens=10))
            reservation.used = lambda: Cost(tokens=3)
            limited.end(reservation)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remaining(limited) == 100_000 - 8 * 50 * 3


def test_unused_and_oldest_addresses_are_dropped():
    clock = FakeClock()
    usages = TenantUsages(LimitsSettings(address=("requests=1/minute",)), clock)
    for number in range(1000):
        assert remaining(usages.of_address(str(number)), "requests") == 1
    assert len(usages._addresses) < 3
    for number in range(MAX_ADDRESSES + 10):
        usages.of_address(str(number)).use(Cost(requests=1))
    assert len(usages._addresses) == MAX_ADDRESSES
    assert remaining(usages.of_address(str(MAX_ADDRESSES)), "requests") == 0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (0.0171, "18ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (90_061.25, "25h1m1.25s"),
    ],
)
def test_durations_have_the_format_of_openais_headers(seconds, expected):
    assert duration(seconds) == expected


def test_limit_headers_have_the_names_of_the_requested_api():
    limited = usage("requests=10/minute", "image_tokens=50/minute")
    limited.use(Cost(requests=1))
    assert dict(limit_headers(limited, "/v1/chat/completions")) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6s",
        "x-ratelimit-limit-image-tokens": "50",
        "x-ratelimit-remaining-image-tokens": "50",
        "x-ratelimit-reset-image-tokens": "0s",
    }
    own = dict(limit_headers(limited, "/v1/messages"))
    assert own["anthropic-ratelimit-requests-remaining"] == "9"
    reset = datetime.fromisoformat(own["anthropic-ratelimit-image-tokens-reset"])
    assert abs((reset - datetime.now(UTC)).total_seconds()) < 300
