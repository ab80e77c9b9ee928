"""Scheduling latency: gaps in answers, bursts, and shared prefixes.

Tests use a simulated clock and counts; none measures time on this machine.
"""

import random
import time
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.kit import prefix
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing.contracts.scheduler_simulation import Simulation
from vlmkit_testing.contracts.sequences import new_sequence
from vlmkit_testing.contracts.simulated_time import StepCost

LIMITS = EngineLimits(
    vocab_size=10**6,
    max_sequence_tokens=4096,
    max_sequences=64,
    capacity_tokens=2**15,
    max_chunk_tokens=256,
    mixes_prefill_and_decode=False,
    prefix_block_tokens=16,
)
FLAT = replace(LIMITS, mixes_prefill_and_decode=True, max_chunk_tokens=2048)
BUDGET_S = 0.2


def simulation(limits=LIMITS, cost=None, **options):
    scheduler = ContinuousScheduler(SchedulerSettings(**options))
    return Simulation(scheduler, limits, cost=cost or StepCost())


def prompt(number, num_tokens=600):
    """Return a prompt that shares no prefix with another."""
    return range(1000 * number, 1000 * number + num_tokens)


@pytest.mark.parametrize("limits", [LIMITS, FLAT])
def test_a_running_answer_continues_while_two_prompts_are_prefilled(limits):
    simulated = simulation(limits)
    simulated.add(new_sequence(prompt(0, 30), max_tokens=100))
    for _ in range(5):
        simulated.step()
    for number in (1, 2):
        simulated.add(new_sequence(prompt(number), max_tokens=2))
    simulated.run()
    assert simulated.waits.longest_gap_s < 2 * BUDGET_S


@settings(max_examples=100)
@given(
    work=st.lists(
        st.tuples(st.integers(1, 2000), st.integers(2, 60), st.integers(0, 40)),
        min_size=2,
        max_size=12,
    ),
    mixes=st.booleans(),
    fixed_ms=st.integers(1, 60),
    token_us=st.integers(50, 4000),
    seed=st.integers(0, 1000),
)
def test_no_gap_in_an_answer_exceeds_three_step_budgets(work, mixes, fixed_ms, token_us, seed):
    """For any arrivals and engine speeds, with step times that vary by a fifth."""
    chance = random.Random(seed)
    noise = lambda: chance.uniform(0.8, 1.2)  # noqa: E731
    cost = StepCost(fixed_ms / 1000, 0.0002, token_us / 1e6, noise)
    simulated = simulation(replace(LIMITS, mixes_prefill_and_decode=mixes), cost)
    for moment in range(41):
        for number, (num_tokens, max_tokens, arrival) in enumerate(work):
            if arrival == moment:
                fresh = prompt(2 * number, num_tokens)
                simulated.add(new_sequence(fresh, max_tokens=max_tokens))
        simulated.step()
    simulated.run()
    slack = 1.2 * (fixed_ms / 1000 + 16 * token_us / 1e6)  # a chunk of the smallest size
    assert simulated.waits.longest_gap_s < 3 * BUDGET_S + slack


@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [(LIMITS, 40), (LIMITS, 600), (LIMITS, 1500), (FLAT, 600), (FLAT, 1500)],
)
def test_mean_wait_of_eight_simultaneous_requests_is_about_half_the_longest(limits, num_tokens):
    simulated = simulation(limits)
    requests = [new_sequence(prompt(number, num_tokens), max_tokens=8) for number in range(8)]
    for sequence in requests:
        simulated.add(sequence)
    simulated.run()
    waits = [simulated.waits.first_s[sequence] for sequence in requests]
    assert waits == sorted(waits), "who comes first is served first"
    assert mean(waits) <= 0.65 * max(waits)


def test_a_short_prompt_behind_a_long_one_runs_next():
    simulated = simulation()
    long, short, later = (new_sequence(prompt(n, k)) for n, k in ((0, 1500), (3, 20), (4, 1500)))
    for sequence in (long, short, later):
        simulated.add(sequence)
    while not short.output_ids:
        simulated.step()
    assert long.output_ids
    assert not later.num_computed_tokens


def test_an_urgent_prompt_does_not_wait_for_the_rest_of_another():
    simulated = simulation()
    calm, urgent = new_sequence(prompt(0, 1500)), new_sequence(prompt(3), priority=-1)
    simulated.add(calm)
    simulated.step()
    simulated.add(urgent)
    while not urgent.output_ids:
        simulated.step()
    assert calm.num_computed_tokens == 256


def test_prompts_run_in_full_chunks_while_no_answer_is_decoded():
    simulated = simulation(step_budget_ms=1)
    simulated.add(new_sequence(prompt(0, 1000)))
    assert [simulated.step().num_tokens for _ in range(4)] == [256, 256, 256, 232]


@pytest.mark.parametrize("limits", [LIMITS, FLAT])
def test_a_prompt_is_not_split_for_a_few_tokens(limits):
    simulated = simulation(replace(limits, max_chunk_tokens=2048), StepCost(0.0, 0.0, 0.001))
    simulated.add(new_sequence(prompt(0, 30), max_tokens=500))
    chunks = []
    for number, num_tokens in enumerate([2000, 240, 260], 1):
        simulated.add(requests := new_sequence(prompt(3 * number, num_tokens), max_tokens=1))
        chunks.append([])
        while requests in simulated.unfinished:
            items = [item for item in simulated.step().items if item.sequence is requests]
            chunks[-1] += [item.num_tokens for item in items]
    assert chunks[1:] == [[240], [200, 60]]


def test_an_engine_that_does_not_mix_gets_at_most_one_chunk_a_step():
    simulated = simulation()
    for number in range(6):
        simulated.add(new_sequence(prompt(number, 20 + 300 * (number % 2)), max_tokens=9))
    while simulated.unfinished:
        step = simulated.step()
        chunks = [item for item in step.items if item.num_tokens > 1]
        assert len(chunks) <= 1
        assert not chunks or len(step.items) == 1


@pytest.mark.parametrize("limits", [LIMITS, FLAT, replace(LIMITS, prefix_block_tokens=1)])
def test_eight_prompts_with_one_cold_prefix_cost_little_more_than_one(limits):
    simulated = simulation(limits)
    for number in range(8):
        simulated.add(new_sequence([*range(1000), *prompt(2 + number, 20)], max_tokens=1))
    simulated.run()
    assert simulated.num_computed_tokens <= 1.3 * 1020


def test_requests_that_wait_for_an_image_do_not_block_others():
    simulated = simulation(FLAT)
    simulated.encoder_steps = 50
    shown = Prompt(tuple(range(100)), (image(4, 10, b"a"),))
    for _ in range(100):
        simulated.add(new_sequence(shown))
    simulated.add(other := new_sequence(prompt(3), max_tokens=3))
    for _ in range(20):
        simulated.step()
    assert len(other.output_ids) == 3


def test_sequences_do_not_wait_for_prefixes_on_an_engine_without_sharing():
    simulated = simulation(replace(FLAT, prefix_block_tokens=0), max_step_tokens=2048)
    for _ in range(4):
        simulated.add(new_sequence(range(100)))
    assert len(simulated.step().items) == 4


def test_a_sequence_waits_only_for_the_blocks_that_it_shares():
    simulated = simulation(replace(FLAT, max_chunk_tokens=100))
    first = new_sequence(range(900))
    second = new_sequence([*range(250), *prompt(3, 50)])
    for sequence in (first, second):
        simulated.add(sequence)
    while second.num_cached_tokens is None:
        simulated.step()
    assert first.num_computed_tokens == 400, "the step after the one that computed 300"
    assert second.num_cached_tokens == 240


def image(start, stop, name):
    return MediaSlot(start, stop, name * 32, {}, stop - start)


@pytest.mark.parametrize(
    "other",
    [
        new_sequence(range(100), scope=b"another"),
        new_sequence(Prompt(tuple(range(100)), (image(4, 10, b"b"),))),
        new_sequence(Prompt(tuple(range(100)))),
        new_sequence(
            Prompt(tuple(range(100)), (image(4, 10, b"a"),)), plan=PromptPlan((Span(4, 40),))
        ),
        new_sequence(Prompt((9, *range(1, 100)), (image(4, 10, b"a"),))),
    ],
    ids=["scope", "picture", "no picture", "span", "token"],
)
def test_sequences_that_cannot_share_blocks_do_not_wait_for_each_other(other):
    simulated = simulation(FLAT)
    simulated.add(new_sequence(Prompt(tuple(range(100)), (image(4, 10, b"a"),))))
    simulated.add(other)
    assert len(simulated.step().items) == 2


def test_choices_of_one_request_share_their_prompt():
    simulated = simulation(FLAT)
    choices = [new_sequence(range(41), max_tokens=2) for _ in range(3)]
    for choice in choices:
        simulated.add(choice)
    assert [item.sequence for item in simulated.step().items] == [choices[0]]
    assert [item.num_tokens for item in simulated.step().items] == [1, 9, 9]


@settings(max_examples=150)
@given(
    work=st.lists(
        st.tuples(
            st.sampled_from([0, 20, 60]),  # tokens of the shared prefix
            st.integers(1, 60),
            st.integers(1, 6),
            st.integers(-1, 1),
            st.integers(0, 12),
            st.sampled_from(["answers", "answers", "leaves", "is held"]),
        ),
        min_size=1,
        max_size=10,
    ),
    mixes=st.booleans(),
    block_tokens=st.sampled_from([1, 4, 16]),
    capacity=st.sampled_from([160, 640]),
    max_sequences=st.integers(1, 4),
)
def test_every_request_ends_whatever_prefixes_it_shares(
    work, mixes, block_tokens, capacity, max_sequences
):
    limits = replace(
        LIMITS,
        mixes_prefill_and_decode=mixes,
        prefix_block_tokens=block_tokens,
        capacity_tokens=capacity,
        max_sequences=max_sequences,
        max_chunk_tokens=17,
    )
    simulated = simulation(limits)
    fates = {}
    for moment in range(60):
        for number, (common, own, max_tokens, priority, arrival, fate) in enumerate(work):
            if arrival == moment:
                ids = [*range(common), *prompt(number + 1, own)]
                sequence = new_sequence(ids, max_tokens=max_tokens, priority=priority)
                simulated.add(sequence)
                fates[sequence] = fate
        simulated.step()
        for sequence in list(simulated.unfinished):
            if fates[sequence] == "is held" and sequence.num_computed_tokens:
                sequence.is_held = bool(sequence.output_ids) and moment % 3 == 1
            elif fates[sequence] == "leaves" and sequence.num_computed_tokens > 10:
                simulated.end(sequence)
    for sequence in simulated.unfinished:
        sequence.is_held = False
    simulated.run()
    simulated.check_empty()


@pytest.mark.parametrize("num_common", [pytest.param(0, marks=pytest.mark.slow), 40])
def test_planning_cost_does_not_grow_with_ten_thousand_waiting_requests(num_common):
    """Counts the sequences that a plan examines instead of timing it."""
    limits = replace(FLAT, max_sequences=100, capacity_tokens=2**16)
    simulated = simulation(limits, max_running=100, max_waiting=20_000)
    for number in range(10_100):
        ids = [*range(num_common), *prompt(100 + number, 20)]
        simulated.add(new_sequence(ids, max_tokens=50))
    examined = set()
    admit, compare = simulated.cache.admit, prefix.num_alike
    simulated.cache.admit = lambda sequence: examined.add(sequence) or admit(sequence)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "num_alike", lambda *both: examined.update(both) or compare(*both))
        while simulated.scheduler.num_running < 100:
            examined.clear()
            simulated.step()
            assert len(examined) <= 100
        examined.clear()
        simulated.step()
    assert len(examined) <= 1


@pytest.mark.parametrize("mixes", [True, False])
def test_an_answer_of_a_real_pipeline_continues_during_prefill(mixes):
    """Counts the prompt tokens between two tokens of the answer."""

    steps = []

    class Slow(MockEngine):
        def forward(self, items):
            num_prompt = sum(item.num_tokens for item in items if item.sequence.is_prefilling)
            steps.append((any(not i.sequence.is_prefilling for i in items), num_prompt))
            time.sleep(0.001 * num_prompt)
            return super().forward(items)

    engine = Slow(MockEngineSettings(mixes_prefill_and_decode=mixes))
    scheduler = ContinuousScheduler(SchedulerSettings(step_budget_ms=20))
    with Model(Pipeline(tokenizer=MockTokenizer(), engine=engine, scheduler=scheduler)) as model:
        answer = iter(model.stream('{"mock": {"text": "on ", "tokens": 3000}}'))
        next(answer)
        steps.clear()
        requests = [model.submit(model.request(f"{n} " + "a word " * 100)) for n in range(2)]
        for stream in requests:
            stream.result()
        seen = list(steps)
        answer.close()
    runs = [0]
    for has_answer, num_prompt in seen:
        runs[-1] += num_prompt
        runs += [0] * has_answer
    assert sum(runs) > 1000
    assert max(runs) < 300
