"""The reference sampler: each parameter follows its formula, independently for each row."""

import gc
import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sampler import FOLLOWED, Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.running.sampling.batch import apply, changed, choice
from vlmkit.running.sampling.logit_edits import EDITS
from vlmkit.running.sampling.random_numbers import MULTIPLIERS, bits, exponentials, keys
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts import sampler_subject

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
    return sample_one(logits, [Row(own) for own in sequences])


def sample_one(logits, rows):
    return ArraySampler().prepare(rows)(logits).tolist()


def frequencies(logits, num=4000, **params):
    """Return the frequency of each token over requests with different seeds."""
    sequences = [sequence(seed=seed, **params) for seed in range(num)]
    ids = choose(np.repeat(logits, num, axis=0), *sequences)
    return np.bincount(ids, minlength=logits.shape[1]) / num


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def test_temperature_zero_samples_the_likeliest_token():
    assert choose(rows([0, 3, 1], [2, 0, 1]), sequence(), sequence()) == [1, 0]


def test_draws_follow_the_softmax_of_logits_over_temperature():
    logits = random_logits(1, vocab=8)
    drawn = frequencies(logits, temperature=1.5)
    assert np.abs(drawn - softmax(logits[0] / 1.5)).max() < 0.03


def test_top_k_samples_from_the_k_likeliest_in_their_proportions():
    logits = random_logits(2, vocab=8)
    drawn = frequencies(logits, temperature=1.0, top_k=3)
    expected = np.where(logits[0] >= np.sort(logits[0])[-3], softmax(logits[0]), 0)
    assert np.abs(drawn - expected / expected.sum()).max() < 0.03


@pytest.mark.parametrize("gap", [1, 16 * 6, 6000])
def test_top_k_finds_the_likeliest_tokens_of_a_large_vocabulary_wherever_they_are(gap):
    logits = random_logits(3, vocab=40_000)
    likeliest = np.arange(5, 5 + 6 * gap, gap)
    logits[0, likeliest] = 20
    logits[0, likeliest[-1]] = 19.9  # a tie of five, then the last that is kept
    drawn = frequencies(logits, num=200, temperature=1e3, top_k=6)
    assert np.flatnonzero(drawn).tolist() == likeliest.tolist()


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


def test_frequency_and_presence_penalties_count_only_the_answer():
    logits = rows([3.0, 2.0, 0.0])
    assert choose(logits, sequence(prompt=[0, 0, 0], frequency_penalty=2.0)) == [0]
    assert choose(logits, sequence(output=[0], frequency_penalty=0.9)) == [0]
    assert choose(logits, sequence(output=[0, 0], frequency_penalty=0.9)) == [1]
    assert choose(logits, sequence(output=[0, 0], presence_penalty=0.9)) == [0]
    assert choose(logits, sequence(output=[0], presence_penalty=1.1)) == [1]


def test_penalties_follow_the_growing_answer():
    logits, seq = rows([3.0, 2.0, 1.0]), sequence(frequency_penalty=0.6)
    for _ in range(6):
        seq.output_ids += choose(logits, seq)
    assert seq.output_ids == [0, 0, 1, 0, 1, 0]


def test_logit_bias_moves_a_token():
    assert choose(rows([3.0, 0.0]), sequence(logit_bias={1: 4.0})) == [1]
    assert choose(rows([3.0, 0.0]), sequence(logit_bias={0: -100.0})) == [1]


def test_banned_tokens_are_never_sampled_whatever_the_bias():
    seq = sequence(banned=[0, 2], logit_bias={0: 100.0})
    assert choose(rows([3.0, 0.0, 9.0]), seq) == [1]


def test_an_answer_does_not_end_before_min_tokens():
    logits = rows([9.0, 1.0])
    assert choose(logits, sequence(eos=[0], min_tokens=2, output=[1])) == [1]
    assert choose(logits, sequence(eos=[0], min_tokens=2, output=[1, 1])) == [0]


def test_a_row_with_a_banned_token_samples_the_next_likeliest_beside_any_rows():
    logits = np.repeat(rows([3.0, 2.0, 1.0]), 4, axis=0)
    bans = [(0,), (), (0, 1), (2,)]
    assert choose(logits, *(sequence(banned=ban) for ban in bans)) == [1, 0, 2, 0]


def test_a_row_does_not_depend_on_the_parameters_of_other_rows():
    requests = [{}, {"temperature": 1.0}, {"repetition_penalty": 1.9}, {"banned": [3]}, {"seed": 4}]
    sequences = [sequence(prompt=range(9), **fields) for fields in requests]
    logits = random_logits(11, len(requests))
    alone = [choose(logits[i : i + 1], s)[0] for i, s in enumerate(sequences)]
    assert choose(logits, *sequences) == alone
    assert choose(logits[::-1], *sequences[::-1]) == alone[::-1]


def test_the_given_logits_are_not_changed():
    logits = random_logits(5)
    before = logits.copy()
    choose(logits, sequence(banned=[1], repetition_penalty=2.0, temperature=1.0))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-300, 1e-50, 1e-40, 1e-9])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}])
def test_the_smallest_temperatures_sample_the_likeliest_token(temperature, filters):
    logits = rows([0.0, 3.0, 2.0, 1.0])
    assert choose(logits, sequence(temperature=temperature, **filters)) == [1]


def transformers_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Return the probabilities after transformers' warpers, in their order and in float64."""
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


@pytest.mark.parametrize("vocab", [40, 3000, 20000])
@pytest.mark.parametrize("top_k", [0, 7, 2000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_sampling_adds_gumbel_noise_to_the_tokens_that_transformers_keeps(
    vocab, top_k, top_p, min_p, temperature
):
    logits = random_logits(7, vocab=vocab)[0] / 8
    wanted = transformers_probabilities(logits, temperature, top_k, top_p, min_p)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    make = [sequence(seed=seed, temperature=temperature, **filters) for seed in range(20)]
    sums = np.stack([logits / temperature + noise(own, vocab) for own in make])
    expected = np.where(wanted > 0, sums, -math.inf).argmax(axis=-1).tolist()
    assert choose(np.repeat(logits[None, :], 20, axis=0), *make) == expected


def noise(own, vocab):
    """Return the Gumbel noise of a sequence's next token, computed with Python integers."""
    first, second = keys(own.seed, len(own.output_ids))
    made = []
    for token_id in range(vocab):
        mixed = (token_id ^ first) * MULTIPLIERS[0] % 2**32
        mixed = ((mixed ^ (mixed >> 16)) ^ second) * MULTIPLIERS[1] % 2**32
        made.append(-math.log(-math.log((mixed + 0.5) / 2**32)))
    return np.array(made)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_logits_of_any_precision_give_the_token_of_their_float32_values(kind):
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(random_logits(8, 30)).to(getattr(torch, kind))
    make = [
        sequence(seed=i, temperature=0.8, top_p=0.9, repetition_penalty=1.2, banned=[4])
        for i in range(30)
    ]
    assert choose(logits, *make) == choose(logits.to(torch.float32).numpy(), *make)


@pytest.mark.torch
def test_repetition_penalty_equals_that_of_transformers():
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = random_logits(9, 1)
    seq = sequence(prompt=[1, 5, 9], output=[5, 20], repetition_penalty=1.7)
    scores = torch.from_numpy(logits.copy())
    ids = torch.tensor([[1, 5, 9, 5, 20]])
    expected = processors.RepetitionPenaltyLogitsProcessor(1.7)(ids, scores.clone())
    changes = EDITS.of(seq).at(Row(seq))
    batch = changed([choice(Row(seq))], logits.shape[-1])
    assert sorted(changes.token_ids.tolist()) == [1, 5, 9, 20]
    apply(np, logits, batch, [choice(Row(seq))])
    assert np.allclose(logits, expected.numpy())


LIBRARIES = [
    pytest.param(lambda logits: logits, id="numpy"),
    pytest.param(lambda logits: pytest.importorskip("torch").from_numpy(logits), id="torch"),
]

TRUNCATIONS = [
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 0.02},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.05},
    {"eta_cutoff": 0.9},
    {"typical_p": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
    {"typical_p": 0.95, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "top_p": 0.9},
]


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
@pytest.mark.parametrize("filters", TRUNCATIONS, ids="-".join)
def test_filters_keep_the_tokens_that_transformers_keeps(array, scale, temperature, filters):
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits, vocab = random_logits(21, vocab=300) / 3 * np.float32(scale), 300
    scores = torch.from_numpy(logits).double() / temperature
    for name, kind in (
        ("top_k", warpers.TopKLogitsWarper),
        ("top_p", warpers.TopPLogitsWarper),
        ("min_p", warpers.MinPLogitsWarper),
        ("typical_p", warpers.TypicalLogitsWarper),
        ("epsilon_cutoff", warpers.EpsilonLogitsWarper),
        ("eta_cutoff", warpers.EtaLogitsWarper),
    ):
        if name in filters:
            scores = kind(filters[name])(None, scores)
    is_kept = torch.isfinite(scores[0]).numpy()
    make = [sequence(seed=seed, temperature=temperature, **filters) for seed in range(60)]
    sums = np.stack([logits[0] / temperature + noise(own, vocab) for own in make])
    expected = np.where(is_kept, sums, -math.inf).argmax(axis=-1).tolist()
    assert choose(array(np.repeat(logits, 60, axis=0)), *make) == expected
    assert 0 < is_kept.sum() < vocab + (scale < 1), "the filter does something"


def test_the_smallest_penalty_keeps_logits_finite():
    smallest = SamplingParams.__annotations__["repetition_penalty"].__metadata__[0].ge
    logits = random_logits(10) * 30
    seq = sequence(prompt=range(VOCAB), repetition_penalty=smallest)
    assert choose(logits, seq) == [int(np.argmax(logits))]


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 2e-5, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 5, 2000]),
        "top_p": st.sampled_from([1.0, 0.9, 0.1, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "repeat_last_n": st.sampled_from([-1, -1, 0, 1, 4]),
        "xtc_probability": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        "xtc_threshold": st.sampled_from([0.01, 0.1]),
        "dry_multiplier": st.sampled_from([0.0, 0.0, 2.0]),
        "dry_allowed_length": st.sampled_from([0, 1]),
        "dry_penalty_last_n": st.sampled_from([-1, 3]),
        "presence_penalty": st.sampled_from([0.0, -1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logit_bias": st.sampled_from([{}, {3: 5.0, 7: -100.0, 11: 2.0}]),
        "typical_p": st.sampled_from([1.0, 1.0, 0.5]),
        "epsilon_cutoff": st.sampled_from([0.0, 0.0, 0.01]),
        "eta_cutoff": st.sampled_from([0.0, 0.0, 0.01]),
        "sequence_bias": st.sampled_from([(), (((5,), 2.0), ((1, 2), 3.0), ((7, 6), 4.0))]),
        "bad_words_ids": st.sampled_from([(), ((8,), (2, 3), (7, 7, 5))]),
        "no_repeat_ngram_size": st.sampled_from([0, 0, 1, 2]),
        "suppress_tokens": st.sampled_from([(), (4, 9)]),
        "begin_suppress_tokens": st.sampled_from([(), (6,)]),
        "min_tokens": st.sampled_from([0, 3]),
    }
)
MEMBERS = st.lists(
    st.tuples(
        PARAMS,
        st.integers(-(2**63), 2**63),
        st.lists(st.integers(0, VOCAB - 1), max_size=5),
        st.lists(st.integers(0, VOCAB - 1), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def make_rows(members):
    return [
        Row(
            sequence(seed=seed, output=output, banned=[3], eos=[2], prompt=[1, 2, 7, 7], **params),
            tuple(ahead),
        )
        for params, seed, output, ahead in members
    ]


@pytest.mark.torch
@pytest.mark.parametrize("vocab", [VOCAB, 5000])
@pytest.mark.parametrize("array", LIBRARIES)
@settings(max_examples=40)
@given(members=MEMBERS, seed=st.integers(0, 2**31), random=st.randoms())
def test_a_row_samples_the_same_token_alone_and_among_others(array, vocab, members, seed, random):
    logits = array(random_logits(seed, len(members), vocab))
    order = random.sample(range(len(members)), len(members))
    alone = [sample_one(logits[i : i + 1], make_rows(members[i : i + 1]))[0] for i in order]
    shuffled = array(random_logits(seed, len(members), vocab)[order])
    assert sample_one(shuffled, make_rows([members[i] for i in order])) == alone


@pytest.mark.torch
@pytest.mark.parametrize("vocab", [VOCAB, 5000])
@settings(max_examples=60)
@given(members=MEMBERS, seed=st.integers(0, 2**31), is_tied=st.booleans())
def test_torch_rows_give_the_same_tokens_as_numpy_rows(vocab, members, seed, is_tied):
    torch = pytest.importorskip("torch")
    logits = random_logits(seed, len(members), vocab)
    if is_tied:  # like logits of 8-bit types
        logits = np.round(logits)
    found = sample_one(torch.from_numpy(logits), make_rows(members))
    assert found == sample_one(logits, make_rows(members))


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@settings(max_examples=60)
@given(members=MEMBERS, seed=st.integers(0, 2**31))
def test_rows_after_drafts_sample_as_if_the_answer_held_the_drafts(array, members, seed):
    params, own_seed, output, ahead = members[0]
    drafting = make_rows([(params, own_seed, output, ())])[0].sequence
    rows = [Row(drafting, tuple(ahead[:num])) for num in range(len(ahead) + 1)]
    held = [(params, own_seed, [*output, *ahead[:num]], ()) for num in range(len(rows))]
    logits = array(random_logits(seed, len(rows)))
    assert sample_one(logits, rows) == sample_one(logits, make_rows(held))
    again = [*output, *ahead[:1]]  # the first draft was accepted, the others were replaced
    drafting.output_ids[:] = again
    now = make_rows([(params, own_seed, again, ())])
    assert sample_one(logits[:1], [Row(drafting)]) == sample_one(logits[:1], now)


FILTERS = [
    {},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"frequency_penalty": 0.5, "presence_penalty": 0.2, "repetition_penalty": 1.3},
    {"logit_bias": {4: 2.0, 5: -1.0}, "top_p": 0.95},
]


@pytest.mark.parametrize(
    ("vocab", "temperature"), [(16, 1.5), pytest.param(3000, 0.7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("filters", FILTERS)
def test_draws_pass_a_chi_square_test(vocab, temperature, filters):
    logits, num = random_logits(12, vocab=vocab) / 2, 8000
    make = [
        sequence(seed=seed, output=[4, 4, 9], temperature=temperature, **filters)
        for seed in range(num)
    ]
    changed_logits = logits.copy()
    apply(
        np,
        changed_logits,
        changed([choice(Row(make[0]))], logits.shape[-1]),
        [choice(Row(make[0]))],
    )
    ranks = {name: filters[name] for name in ("top_k", "top_p", "min_p") if name in filters}
    weights = transformers_probabilities(changed_logits[0], temperature, **ranks)
    block = np.repeat(logits, 500, axis=0)
    drawn = [token for i in range(0, num, 500) for token in choose(block, *make[i : i + 500])]
    counts = np.bincount(drawn, minlength=vocab)
    assert counts[weights == 0].sum() == 0
    often = weights * num >= 10
    seen = np.append(counts[often], counts[~often].sum())
    expected = np.append(weights[often], weights[~often].sum()) * num
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic, freedom = ((seen - expected) ** 2 / expected).sum(), max(1, len(seen) - 1)
    # The cube root of chi-square is nearly normal (Wilson and Hilferty, 1931): five deviations.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 5


def test_neighbouring_tokens_positions_and_seeds_have_independent_noise():
    own = np.stack(
        [noise(sequence(seed=s, output=[0] * n), 256) for s in range(20) for n in range(20)]
    )
    flat = (own - own.mean()) / own.std()
    assert abs(own.mean() - 0.5772) < 0.02
    assert abs(own.var() - math.pi**2 / 6) < 0.05
    for distance in (1, 2, 3, 16, 128):
        assert abs((flat[:, distance:] * flat[:, :-distance]).mean()) < 0.02
    for distance in (1, 20):
        assert abs((flat[distance:] * flat[:-distance]).mean()) < 0.02


# The nucleus, compared with sorting.


def sorted_choice(logits, own):
    """Return the token of a row by definition: sort, sum, cut, add noise."""
    params, ordered = own.params, np.sort(logits)[::-1]
    num = min(params.top_k or len(logits), len(logits))
    with np.errstate(all="ignore"):
        scaled = ordered / np.float64(params.temperature)
        sums = np.cumsum(np.exp(scaled - scaled[0]))
        index = int((sums < params.top_p * sums[num - 1]).sum())
        least = np.maximum(ordered[index], ordered[0] + params.temperature * log(params.min_p))
        keyed = bits(np.arange(len(logits)), *keys(own.seed, len(own.output_ids)))
        noisy = logits / np.float64(params.temperature) - np.log(exponentials(np, keyed))
        return int(np.where(logits < least, -math.inf, noisy).argmax())


def log(value):
    return math.log(value) if value else -math.inf


def nucleus_rows(kind, num, vocab, seed):
    random = np.random.default_rng(seed)
    made = {
        "normal": lambda: random.normal(size=(num, vocab)),
        "nearly flat": lambda: random.normal(size=(num, vocab)) * 1e-3,
        "peaked": lambda: -1.5 * np.log(np.argsort(random.random((num, vocab))) + 1.0),
        "steps": lambda: random.integers(-3, 4, (num, vocab)) / 4,
        "two": lambda: random.integers(0, 2, (num, vocab)) * 1.0,
        "equal": lambda: np.zeros((num, vocab)),
        "wide": lambda: random.normal(size=(num, vocab)) * 60,
        "subnormal": lambda: random.normal(size=(num, vocab)) * 1e-41,
    }[kind]()
    return made.astype(np.float32)


NUCLEUS_KINDS = ["normal", "nearly flat", "peaked", "steps", "two", "equal", "wide", "subnormal"]
NUCLEUS_PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-5, 0.01, 0.3, 0.7, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 2, 40, 1500, 1_000_000]),
        "top_p": st.sampled_from([1.0, 1 - 1e-16, 1 - 1e-9, 0.9999, 0.9, 0.5, 0.1, 1e-3, 5e-324]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.9, 1.0]),
    }
)


@settings(max_examples=120)
@given(
    kind=st.sampled_from(NUCLEUS_KINDS),
    params=NUCLEUS_PARAMS,
    vocab=st.sampled_from([1, 2, 7, 300, 5000]),
    masked=st.sampled_from([0.0, 0.5, 0.999]),
    seed=st.integers(0, 2**31),
)
def test_a_sampled_token_equals_that_of_the_sorted_row(kind, params, vocab, masked, seed):
    logits = nucleus_rows(kind, 12, vocab, seed)
    is_masked = np.random.default_rng(seed).random(logits.shape) < masked
    is_masked[:, seed % vocab] = False
    logits[is_masked] = -math.inf
    make = [sequence(seed=seed + i, **params) for i in range(len(logits))]
    expected = [sorted_choice(row, own) for row, own in zip(logits, make, strict=True)]
    assert choose(logits, *make) == expected


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["normal", "nearly flat", "steps", "two"]),
    temperature=st.sampled_from([0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 30]),
    index=st.integers(0, 199),
    nudge=st.sampled_from([-1, 0, 1]),
    seed=st.integers(0, 2**31),
)
def test_a_top_p_equal_to_a_partial_sum_cuts_where_sorting_does(
    kind, temperature, top_k, index, nudge, seed
):
    """``top_p`` equals a sum of the definition exactly, or differs in its last bit."""
    logits = nucleus_rows(kind, 1, 200, seed)
    scaled = np.sort(logits[0])[::-1] / np.float64(temperature)
    sums = np.cumsum(np.exp(scaled - scaled[0]))
    top_p = sums[index % (top_k or 200)] / sums[(top_k or 200) - 1]
    top_p = min(1.0, float(np.nextafter(top_p, top_p + nudge)))
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    make = [sequence(seed=seed + i, **params) for i in range(40)]
    expected = [sorted_choice(logits[0], own) for own in make]
    assert choose(np.repeat(logits, 40, axis=0), *make) == expected


@pytest.mark.parametrize("min_p", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_min_p_is_compared_in_more_than_single_precision(min_p):
    logits = rows([0.0, math.log(min_p)])
    make = [sequence(seed=seed, temperature=1.0, min_p=min_p) for seed in range(200)]
    is_kept = float(logits[0, 1]) >= math.log(min_p)
    assert (1 in choose(np.repeat(logits, 200, axis=0), *make)) == is_kept


@pytest.mark.parametrize("kind", ["normal", "nearly flat", "steps", "equal"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_large_flat_vocabulary_is_not_sorted(kind, temperature, monkeypatch):
    logits = nucleus_rows(kind, 8, 152_064, 1)
    make = [sequence(seed=seed, temperature=temperature, top_p=0.9) for seed in range(8)]
    expected = [sorted_choice(row, own) for row, own in zip(logits, make, strict=True)]
    sizes = []
    for name in ("sort", "partition", "argsort", "argpartition"):
        real = getattr(np, name)
        spy = lambda array, *rest, real=real, **more: (  # noqa: E731
            sizes.append(np.size(array)) or real(array, *rest, **more)
        )
        monkeypatch.setattr(np, name, spy)
    assert choose(logits, *make) == expected
    assert sizes == []


# Extreme values.

FLAT = np.zeros((2, 152_000), np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.9}, {"top_k": 10}, {"top_p": 1e-6}, {"min_p": 1.0}]
)
def test_equally_likely_tokens_are_chosen_by_the_seed(array, filters):
    """All tokens tie with the last kept one, so the seed decides."""
    make = [sequence(seed=seed, temperature=1.0, **filters) for seed in (1, 2)]
    expected = [int(noise(own, FLAT.shape[1]).argmax()) for own in make]
    assert choose(array(FLAT), *make) == expected


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize("params", [{}, {"top_k": 1, "temperature": 2.0}])
def test_greedy_sampling_takes_the_first_of_equal_tokens(array, params):
    assert choose(array(FLAT), *(sequence(seed=seed, **params) for seed in (1, 2))) == [0, 0]


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37])
def test_logits_of_any_magnitude_are_distinguished(array, filters, scale):
    logits = rows([0.0, 1.0, 3.0, 2.0], [3.0, -3.0, 1.0, 0.0]) * np.float32(scale)
    greedy, cold = sequence(), sequence(temperature=2e-5, **filters)
    expected = [2, 0] if scale >= 1 else [2, choose(logits[1:], cold)[0]]
    assert choose(array(logits), greedy, cold) == expected


@pytest.mark.torch
@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
def test_logits_that_are_not_finite_do_not_affect_other_rows(array, value, params):
    """The sampler returns such a token; the pipeline then fails the request."""
    logits = random_logits(13, 3, vocab=3000)
    make = [sequence(seed=seed, **params) for seed in range(3)]
    expected = choose(logits, *make)
    logits[1, 1700] = value
    found = choose(array(logits), *make)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert found[1] == (expected[1] if value == -math.inf else 1700)
    logits[1] = value
    found = choose(array(logits), *make)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert 0 <= found[1] < 3000


def test_the_smallest_top_p_samples_the_likeliest_token():
    logits = random_logits(14, 4, vocab=4000)
    make = [sequence(seed=seed, temperature=2.0, top_p=1e-6) for seed in range(4)]
    assert choose(logits, *make) == logits.argmax(axis=-1).tolist()


@pytest.mark.parametrize("keep", [Row, lambda seq: WorkItem(seq, 0, 1)])
def test_a_sequence_that_holds_a_reference_to_itself_is_freed(keep):
    class Held:
        pass

    seq = sequence()
    seq.guide = Held()
    seq.kept["it"] = keep(seq)
    held = weakref.ref(seq.guide)
    del seq
    gc.collect()
    assert held() is None


def test_the_contract_covers_every_parameter_that_a_sampler_may_ignore():
    assert set(sampler_subject.FOLLOWED) == FOLLOWED
