"""A quota is never exceeded, and no caller can keep all of it from others."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from vlmkit.running.scheduling.fair_share import RESERVE_DIVISOR
from vlmkit_server.http.errors import Overloaded
from vlmkit_server.http.quota import MAX_CHECKS, Quota


@dataclass(eq=False)
class FakeHolder:
    caller: str
    is_evictable: bool = True
    is_idle: bool = False
    is_evicted: bool = field(default=False, init=False)

    def evict(self):
        self.is_evicted = True


def added(quota, caller, count, **how):
    holders = [FakeHolder(caller, **how) for _ in range(count)]
    return [holder for holder in holders if quota.add(holder, 1)]


def test_one_caller_can_hold_the_whole_quota():
    quota = Quota(10)
    assert len(added(quota, "one", 12)) == 10


def test_the_caller_with_most_is_evicted_until_callers_hold_the_same():
    quota = Quota(10)
    hog = added(quota, "hog", 10)
    assert len(added(quota, "other", 10)) == 5
    assert [holder.is_evicted for holder in hog] == [True] * 5 + [False] * 5


def test_a_holder_that_is_not_evictable_is_not_evicted():
    quota = Quota(3)
    hog = added(quota, "hog", 3, is_evictable=False)
    assert not quota.add(FakeHolder("other"), 1)
    assert not any(holder.is_evicted for holder in hog)


def test_a_caller_evicts_only_its_own_idle_holders():
    quota = Quota(3)
    first, second, third = (FakeHolder("one", is_idle=number == 1) for number in range(3))
    assert all(quota.add(holder, 1) for holder in (first, second, third))
    assert [quota.add(FakeHolder("one"), 1) for _ in range(2)] == [True, False]
    assert [holder.is_evicted for holder in (first, second, third)] == [False, True, False]


def test_callers_with_equal_amounts_evict_only_idle_holders():
    quota = Quota(3)
    holders = [FakeHolder(caller, is_idle=caller == "b") for caller in "abc"]
    assert all(quota.add(holder, 1) for holder in holders)
    assert [quota.add(FakeHolder(caller), 1) for caller in "de"] == [True, False]
    assert [holder.is_evicted for holder in holders] == [False, True, False]


def test_an_idle_holder_among_many_busy_ones_is_found_in_few_checks():
    quota = Quota(10 * MAX_CHECKS)
    for caller in ("one", "two"):  # two callers with the same amount
        assert len(added(quota, caller, 5 * MAX_CHECKS, is_evictable=False)) == 5 * MAX_CHECKS
    quota.release(next(reversed(quota._holders["two"])))
    assert quota.add(FakeHolder("two", is_idle=True), 1)
    assert any(quota.add(FakeHolder("three"), 1) for _ in range(10))


def test_evict_idle_evicts_idle_holders_alone():
    quota = Quota(10)
    busy, idle = added(quota, "one", 3), added(quota, "two", 2, is_idle=True)
    assert [quota.evict_idle() for _ in range(3)] == [True, True, False]
    assert all(holder.is_evicted for holder in idle)
    assert not any(holder.is_evicted for holder in busy)
    assert quota.num_held == 3


def test_an_amount_over_the_limit_evicts_no_other_holder():
    quota = Quota(10)
    small = FakeHolder("small")
    assert quota.add(small, 4)
    assert not quota.add(FakeHolder("large"), 11)
    assert not small.is_evicted


MOVES = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.integers(0, 6), st.booleans(), st.booleans(), st.booleans()
    )
)


@given(st.integers(1, 20), MOVES)
def test_the_held_amount_is_the_sum_over_holders(limit, moves):
    quota, held = Quota(limit), {}
    for caller, amount, is_evictable, is_idle, goes in moves:
        if goes and held:
            holder = next(iter(held))
            quota.release(holder)
            quota.release(holder)  # has no effect
            del held[holder]
            continue
        holder = FakeHolder(caller, is_evictable, is_idle)
        if quota.add(holder, amount):
            held[holder] = amount
        for gone in [other for other in held if other.is_evicted]:
            assert gone.is_evictable or gone.is_idle
            del held[gone]
        assert quota.num_held == sum(held.values()) <= limit
        assert len(quota._by_caller) <= len(held)
    for holder in held:
        quota.release(holder)
    assert quota.num_held == 0


def acquired(quota, caller, count, amount=1):
    permits = []
    for _ in range(count):
        try:
            permits.append(quota.acquire(caller, amount))
        except Overloaded:
            break
    return permits


def test_an_eighth_of_the_quota_is_reserved_for_other_callers():
    quota = Quota(80)
    hog = acquired(quota, "hog", 80)
    assert len(hog) == 70
    assert len(acquired(quota, "other", 80)) == 10  # the rest, since this caller holds less
    assert not quota.fits("hog")
    for permit in hog[:60]:
        permit.release()
    assert len(acquired(quota, "hog", 80)) == 50  # another eighth is reserved now


def test_one_caller_can_acquire_all_of_a_small_quota():
    assert len(acquired(Quota(7), "one", 9)) == 7


def test_a_permit_is_released_when_its_block_raises():
    quota = Quota(3)
    with pytest.raises(KeyError), quota.acquire("one", 2):
        raise KeyError
    assert quota.num_held == 0
    permit = quota.acquire("one", 2)
    permit.release()
    permit.release()
    assert (quota.num_held, quota.held_by("one")) == (0, 0)


def test_a_refusal_has_a_retry_time():
    quota = Quota(1, "too many of these")
    with quota.acquire("one"), pytest.raises(Overloaded, match="too many of these") as refused:
        quota.acquire("other")
    assert refused.value.retry_after_s >= 1


def test_the_waiting_caller_with_the_lowest_amount_is_admitted_next():
    async def scenario():
        quota, order = Quota(16), []

        async def use(caller, amount):
            with await quota.wait(caller, amount):
                order.append(caller)

        with quota.acquire("hog", 10):
            own = quota.acquire("hog", 2)
            tasks = [asyncio.ensure_future(use("hog", 5)) for _ in range(2)]
            tasks.append(asyncio.ensure_future(use("other", 5)))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):  # waiting callers have priority
                quota.acquire("third")
            own.release()
            await tasks[-1]
            assert order == ["other"]
        await asyncio.gather(*tasks)
        return quota.num_held, len(order), quota._waiting

    assert asyncio.run(scenario()) == (0, 3, {})


def test_a_cancelled_wait_holds_nothing_and_blocks_no_caller():
    async def scenario():
        quota = Quota(10)
        with quota.acquire("one", 5):
            large = asyncio.ensure_future(quota.wait("large", 10))
            await asyncio.sleep(0)
            small = asyncio.ensure_future(quota.wait("small", 2))
            await asyncio.sleep(0)
            assert not small.done()  # a later caller does not overtake, or the first would starve
            large.cancel()
            (await small).release()
            late = asyncio.ensure_future(quota.wait("late", 9))
            await asyncio.sleep(0)
        late.cancel()  # it already has its permit
        await asyncio.gather(large, late, return_exceptions=True)
        with pytest.raises(Overloaded):
            await quota.wait("one", 11)
        return quota.num_held, quota._waiting

    assert asyncio.run(scenario()) == (0, {})


ACQUISITIONS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 30), st.booleans()))


@given(st.integers(1, 60), ACQUISITIONS)
def test_no_caller_acquires_the_part_reserved_for_others(limit, moves):
    quota, held = Quota(limit), []
    with ExitStack() as permits:
        for caller, amount, goes in moves:
            if goes and held:
                held.pop()[1].release()
                continue
            own = quota.held_by(caller)
            try:
                permit = quota.acquire(caller, amount)
            except Overloaded:
                # It does not fit, or would leave too little for new callers.
                left = limit - quota.num_held - amount
                assert left < 0 or (left < limit // RESERVE_DIVISOR and own + amount > limit // 6)
                continue
            held.append((amount, permits.enter_context(permit)))
            assert quota.num_held == sum(each for each, _ in held) <= limit
    assert (quota.num_held, quota._by_caller, quota._holders) == (0, {}, {})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.integers(0, 5))))
def test_every_waiting_caller_is_admitted(wishes):
    async def scenario():
        quota = Quota(20)

        async def use(caller, amount, num_pauses):
            with await quota.wait(caller, amount):
                assert quota.num_held <= quota.limit
                for _ in range(num_pauses):
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(use(*wish)) for wish in wishes]
        for task in tasks[::3]:
            await asyncio.sleep(0)
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [each for each in done if isinstance(each, Exception)]
        return quota.num_held, quota._waiting

    assert asyncio.run(scenario()) == (0, {})
