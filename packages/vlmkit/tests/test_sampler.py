"""The reference sampler: each parameter does what its formula says, for each row by itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import EngineError
from vlmkit.prompt import Prompt
from vlmkit.sampler import ArraySampler, uniform
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence

VOCAB = 50


def sequence(output=(), prompt=(1, 2), seed=0, banned=(), eos=(), **params):
    seq = Sequence(
        id="s",
        prompt=Prompt(tuple(prompt)),
        params=SamplingParams(**params),
        seed=seed,
        max_tokens=1000,
        banned_ids=tuple(banned),
        eos_ids=frozenset(eos),
    )
    seq.output_ids.extend(output)
    return seq


def rows(*values):
    return np.array(values, dtype=np.float32)


def random_logits(seed, num=1, vocab=VOCAB):
    return np.random.default_rng(seed).normal(size=(num, vocab)).astype(np.float32) * 3


def choose(logits, *sequences):
    return [sample.token_id for sample in ArraySampler().sample(logits, list(sequences))]


def frequencies(logits, num=4000, **params):
    """Return how often each token is drawn by as many requests with different seeds."""
    sequences = [sequence(seed=seed, **params) for seed in range(num)]
    ids = choose(np.repeat(logits, num, axis=0), *sequences)
    return np.bincount(ids, minlength=logits.shape[1]) / num


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def test_no_rows_give_no_samples():
    assert ArraySampler().sample(np.zeros((0, VOCAB), np.float32), []) == []


def test_temperature_zero_takes_the_likeliest():
    assert choose(rows([0, 3, 1], [2, 0, 1]), sequence(), sequence()) == [1, 0]


def test_draws_follow_the_softmax_of_logits_over_temperature():
    logits = random_logits(1, vocab=8)
    drawn = frequencies(logits, temperature=1.5)
    assert np.abs(drawn - softmax(logits[0] / 1.5)).max() < 0.03


def test_top_k_draws_from_the_k_likeliest_in_their_proportions():
    logits = random_logits(2, vocab=8)
    drawn = frequencies(logits, temperature=1.0, top_k=3)
    expected = np.where(logits[0] >= np.sort(logits[0])[-3], softmax(logits[0]), 0)
    assert np.abs(drawn - expected / expected.sum()).max() < 0.03


def test_top_p_keeps_the_fewest_tokens_that_reach_the_sum():
    logits = np.log(rows([0.5, 0.3, 0.15, 0.05]))
    drawn = frequencies(logits, temperature=1.0, top_p=0.7)
    assert drawn[2:].sum() == 0
    assert abs(drawn[0] - 0.625) < 0.03


def test_min_p_drops_tokens_far_below_the_likeliest():
    logits = np.log(rows([0.5, 0.3, 0.15, 0.05]))
    drawn = frequencies(logits, temperature=1.0, min_p=0.2)
    assert drawn[3] == 0
    assert drawn[2] > 0.1


def test_filters_work_on_a_vocabulary_over_the_candidate_bound():
    logits = np.zeros((1, 5000), np.float32)
    drawn = frequencies(logits, num=300, temperature=1.0, top_p=0.9)
    assert (drawn > 0).sum() > 250
    assert drawn.max() < 0.05


def test_a_token_without_probability_is_never_drawn():
    logits = rows([-math.inf, 0.0, -math.inf])
    assert frequencies(logits, num=500, temperature=2.0)[1] == 1.0


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = rows([3.0, 2.9, -1.0, -1.1])
    assert choose(logits, sequence(prompt=[0], repetition_penalty=1.5)) == [1]
    only_negative = rows([-1.0, -1.1, -9.0])
    assert choose(only_negative, sequence(output=[0], prompt=[2], repetition_penalty=1.5)) == [1]


def test_frequency_and_presence_penalties_count_the_answer_and_not_the_prompt():
    logits = rows([3.0, 2.0, 0.0])
    assert choose(logits, sequence(prompt=[0, 0, 0], frequency_penalty=2.0)) == [0]
    assert choose(logits, sequence(output=[0], frequency_penalty=0.9)) == [0]
    assert choose(logits, sequence(output=[0, 0], frequency_penalty=0.9)) == [1]
    assert choose(logits, sequence(output=[0, 0], presence_penalty=0.9)) == [0]
    assert choose(logits, sequence(output=[0], presence_penalty=1.1)) == [1]


def test_penalties_keep_count_as_the_answer_grows():
    logits, seq = rows([3.0, 2.0, 1.0]), sequence(frequency_penalty=0.6)
    for _ in range(6):
        seq.output_ids += choose(logits, seq)
    assert seq.output_ids == [0, 0, 1, 0, 1, 0]


def test_logit_bias_moves_a_token():
    assert choose(rows([3.0, 0.0]), sequence(logit_bias={1: 4.0})) == [1]
    assert choose(rows([3.0, 0.0]), sequence(logit_bias={0: -100.0})) == [1]


def test_banned_tokens_are_never_chosen_whatever_the_bias():
    seq = sequence(banned=[0, 2], logit_bias={0: 100.0})
    assert choose(rows([3.0, 0.0, 9.0]), seq) == [1]


def test_an_answer_does_not_end_before_its_minimum():
    logits = rows([9.0, 1.0])
    assert choose(logits, sequence(eos=[0], min_tokens=2, output=[1])) == [1]
    assert choose(logits, sequence(eos=[0], min_tokens=2, output=[1, 1])) == [0]


def test_logprobs_are_the_models_own_whatever_temperature_and_bias_say():
    logits = random_logits(3)
    seq = sequence(temperature=0.5, logit_bias={7: 50.0}, logprobs=True, top_logprobs=3)
    sample = ArraySampler().sample(logits, [seq])[0]
    expected = np.log(softmax(logits[0].astype(np.float64)))
    assert sample.token_id == 7
    assert sample.logprob == pytest.approx(expected[7], abs=1e-4)
    assert [t.token_id for t in sample.top] == list(np.argsort(-expected)[:3])
    assert sample.top[0].logprob == pytest.approx(expected.max(), abs=1e-4)


def test_logprobs_are_absent_where_they_were_not_asked_for():
    asks, does_not = sequence(logprobs=True), sequence()
    first, second = ArraySampler().sample(random_logits(4, 2), [asks, does_not])
    assert first.logprob is not None
    assert (second.logprob, second.top) == (None, ())


def test_logits_without_a_finite_value_are_an_engine_error():
    with pytest.raises(EngineError, match="without a finite value"):
        choose(rows([math.nan, math.nan]), sequence())
    with pytest.raises(EngineError, match="without a finite value"):
        choose(rows([-math.inf, -math.inf]), sequence())


def test_a_banned_token_gives_way_to_the_next_whoever_stands_beside_it():
    logits = np.repeat(rows([3.0, 2.0, 1.0]), 4, axis=0)
    bans = [(0,), (), (0, 1), (2,)]
    assert choose(logits, *(sequence(banned=ban) for ban in bans)) == [1, 0, 2, 0]


def test_what_a_row_asks_for_does_not_depend_on_the_other_rows():
    asked = [{}, {"temperature": 1.0}, {"repetition_penalty": 1.9}, {"banned": [3]}, {"seed": 4}]
    sequences = [sequence(prompt=range(9), **fields) for fields in asked]
    logits = random_logits(11, len(asked))
    alone = [choose(logits[i : i + 1], s)[0] for i, s in enumerate(sequences)]
    assert choose(logits, *sequences) == alone
    assert choose(logits[::-1], *sequences[::-1]) == alone[::-1]


def test_the_logits_that_were_passed_in_stay_as_they_were():
    logits = random_logits(5)
    before = logits.copy()
    choose(logits, sequence(banned=[1], repetition_penalty=2.0, temperature=1.0))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-300, 1e-50, 1e-40, 1e-9])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}])
def test_the_smallest_temperatures_take_the_likeliest(temperature, filters):
    logits = rows([0.0, 3.0, 2.0, 1.0])
    assert choose(logits, sequence(temperature=temperature, **filters)) == [1]


def hugging_face(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Return the probabilities that transformers' warpers leave, in its order and in float64."""
    scores = logits.astype(np.float64) / temperature
    if top_k:
        scores[scores < np.sort(scores)[-min(top_k, len(scores))]] = -math.inf
    order = np.argsort(scores, kind="stable")
    tail = np.cumsum(softmax(scores)[order]) <= 1 - top_p
    tail[-1] = False
    scores[order[tail]] = -math.inf
    weights = softmax(scores)
    scores[weights < min_p * weights.max()] = -math.inf
    return softmax(scores)


@pytest.mark.parametrize("vocab", [40, 3000])
@pytest.mark.parametrize("top_k", [0, 7, 2000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_what_may_be_drawn_is_what_transformers_leaves(vocab, top_k, top_p, min_p, temperature):
    logits = random_logits(7, vocab=vocab)[0] / 8
    wanted = hugging_face(logits, temperature, top_k, top_p, min_p)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    possible = np.flatnonzero(wanted)
    cumulative = np.cumsum(wanted[possible])
    seeds = range(60)
    for seed in seeds:
        seq = sequence(seed=seed, temperature=temperature, **filters)
        drawn = choose(logits[None, :], seq)[0]
        assert wanted[drawn] > 0
        if top_k or top_p < 1.0 or min_p:
            place = int(np.searchsorted(cumulative, uniform(seq)))
            near = possible[max(0, place - 1) : place + 2]
            assert drawn in near


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.95}, {"min_p": 0.01}, {"top_k": 3}])
def test_a_rounding_that_swaps_two_tokens_swaps_no_draw(filters):
    seeds = range(100)
    once, again = rows([1.0, 1.000001, 0.5, 0.0]), rows([1.000001, 1.0, 0.5, 0.0])
    make = [sequence(seed=seed, temperature=1.0, **filters) for seed in seeds]
    drawn = [choose(logits, seq)[0] for logits in (once, again) for seq in make]
    assert drawn[: len(seeds)] == drawn[len(seeds) :]
    assert {0, 1} <= set(drawn)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_logits_of_any_width_give_the_token_of_their_float32_values(kind):
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(random_logits(8, 30)).to(getattr(torch, kind))
    make = [
        sequence(seed=i, temperature=0.8, top_p=0.9, repetition_penalty=1.2, banned=[4])
        for i in range(30)
    ]
    assert choose(logits, *make) == choose(logits.to(torch.float32).numpy(), *make)


@pytest.mark.torch
def test_repetition_penalty_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = random_logits(9, 1)
    seq = sequence(prompt=[1, 5, 9], output=[5, 20], repetition_penalty=1.7)
    scores = torch.from_numpy(logits.copy())
    ids = torch.tensor([[1, 5, 9, 5, 20]])
    expected = processors.RepetitionPenaltyLogitsProcessor(1.7)(ids, scores.clone())
    ArraySampler()._adjust(np, logits, [seq])
    assert np.allclose(logits, expected.numpy())


def test_the_smallest_penalty_keeps_logits_finite():
    smallest = SamplingParams.__annotations__["repetition_penalty"].__metadata__[0].ge
    logits = random_logits(10) * 30
    seq = sequence(prompt=range(VOCAB), repetition_penalty=smallest)
    assert choose(logits, seq) == [int(np.argmax(logits))]


def test_draws_are_spread_evenly_over_the_unit_interval():
    draws = [uniform(sequence(seed=s, output=[0] * n)) for s in range(50) for n in range(50)]
    assert max(draws) < 1.0
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert counts.min() > 190


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.9, 0.1]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logprobs": st.booleans(),
    }
)


@settings(max_examples=100, deadline=None)
@given(
    members=st.lists(
        st.tuples(PARAMS, st.integers(0, 2**40), st.lists(st.integers(0, VOCAB - 1), max_size=5)),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**31),
)
def test_a_row_is_chosen_the_same_alone_and_among_others(members, seed):
    logits = random_logits(seed, len(members))

    def make(member):
        params, own_seed, output = member
        return sequence(seed=own_seed, output=output, banned=[3], **params)

    together = choose(logits, *map(make, members))
    alone = [choose(logits[i : i + 1], make(m))[0] for i, m in enumerate(members)]
    assert together == alone


@pytest.mark.torch
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}])
def test_torch_rows_give_the_same_tokens_as_numpy_rows(params):
    torch = pytest.importorskip("torch")
    logits = random_logits(6, 40)
    make = [
        sequence(seed=i, banned=[2], frequency_penalty=0.3, output=[5], **params) for i in range(40)
    ]
    assert choose(torch.from_numpy(logits), *make) == choose(logits, *make)
