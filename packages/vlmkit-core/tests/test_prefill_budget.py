"""The prefill budget: chunk sizes converge to steps of the budgeted time, despite outliers."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.running.scheduling.prefill_budget import MIN_CHUNK_TOKENS, PrefillBudget
from vlmkit.settings.scheduler import SchedulerSettings

BUDGET_S = 0.2


def new_budget():
    return PrefillBudget(SchedulerSettings(step_budget_ms=200))


def chunk(budget):
    return max(MIN_CHUNK_TOKENS, budget.num_prompt_tokens())


def run(budget, cost, num_steps=30):
    """Run chunks of the budgeted size; return the duration of each step."""
    seconds = []
    for _ in range(num_steps):
        num_tokens = chunk(budget)
        seconds.append(cost(num_tokens))
        budget.record(num_tokens, seconds[-1])
    return seconds


@settings(max_examples=200)
@given(
    fixed_s=st.floats(0.0, 0.1),
    token_s=st.floats(1e-5, 0.006),
    first=st.sampled_from([1, 40, 2000]),
    slowness=st.floats(0.01, 100.0),
    seed=st.integers(0, 1000),
)
def test_chunks_settle_at_the_size_whose_step_takes_the_budget(
    fixed_s, token_s, first, slowness, seed
):
    """For any first step, and with durations that vary by a fifth."""
    chance = random.Random(seed)
    budget = new_budget()
    budget.record(0, fixed_s)
    budget.record(first, slowness * (fixed_s + first * token_s))
    seconds = run(budget, lambda n: (fixed_s + n * token_s) * chance.uniform(0.8, 1.2))[-10:]
    typical = sorted(seconds)[5]
    assert 0.5 * budget.max_s < typical < 1.5 * budget.max_s


def test_a_hiccup_is_forgotten():
    budget = new_budget()
    budget.record(0, 0.01)
    run(budget, lambda n: 0.01 + 0.001 * n)
    before = chunk(budget)
    budget.record(before, 20.0)
    assert chunk(budget) >= before // 2
    run(budget, lambda n: 0.01 + 0.001 * n, 4)
    assert chunk(budget) > 0.8 * before


@pytest.mark.parametrize("factor", [10, 0.1])
def test_the_budget_adapts_to_a_new_engine_speed_in_a_few_steps(factor):
    budget = new_budget()
    budget.record(0, 0.001)
    run(budget, lambda n: 0.001 * n)
    seconds = run(budget, lambda n: 0.001 * factor * n, 6)
    assert 0.7 * BUDGET_S < seconds[-1] < 1.4 * BUDGET_S


def test_a_short_chunk_does_not_change_the_estimate_for_long_ones():
    budget = new_budget()
    budget.record(0, 0.02)
    run(budget, lambda n: 0.02 + 0.001 * n)
    before = chunk(budget)
    for num_tokens in range(1, 60):
        budget.record(num_tokens, 0.02 + 0.001 * num_tokens)
    assert chunk(budget) == before


@pytest.mark.parametrize("answers_s", [0.0, 0.01, 0.19, 0.21, 3.0])
def test_a_step_takes_less_than_three_decode_steps_or_three_budgets(answers_s):
    budget = new_budget()
    budget.record(0, answers_s)
    assert budget.max_s == pytest.approx(BUDGET_S + 2 * answers_s)
    assert budget.max_s < 3 * max(BUDGET_S, answers_s)
    assert run(budget, lambda n: answers_s + 0.001 * n)[-1] == pytest.approx(budget.max_s, rel=0.05)


def test_waiting_time_of_running_answers_is_subtracted():
    budget = new_budget()
    budget.record(100, 0.1)
    assert budget.num_prompt_tokens(0.05) == pytest.approx(150, abs=1)
    assert budget.num_prompt_tokens(0.14) == 0, "what is left is too short for a chunk"
    assert budget.num_prompt_tokens(9.0) == 0


def test_an_engine_that_takes_no_time_has_no_bound():
    budget = new_budget()
    budget.record(10, 0.0)
    assert budget.num_prompt_tokens() > 10**6
