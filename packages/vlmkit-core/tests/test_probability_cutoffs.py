"""Probability filters on the host keep the same tokens as sorting would, without sorting."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.sampling.probability_cutoffs import distance_reached
from vlmkit.running.sampling.random_numbers import bits, exponentials, keys
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams

VOCAB = 152_064


def sequence(seed, **params):
    return Sequence(
        id="s", prompt=Prompt((1, 2)), params=SamplingParams(**params), seed=seed, max_tokens=1000
    )


def choose(logits, *sequences):
    return ArraySampler().prepare([Row(own) for own in sequences])(logits).tolist()


def rows_of(kind, num, vocab, seed):
    random = np.random.default_rng(seed)
    made = {
        "normal": lambda: random.normal(size=(num, vocab)),
        "nearly flat": lambda: random.normal(size=(num, vocab)) * 1e-3,
        "peaked": lambda: -1.5 * np.log(np.argsort(random.random((num, vocab))) + 1.0),
        "steps": lambda: random.integers(-3, 4, (num, vocab)) / 4,
        "two": lambda: random.integers(0, 2, (num, vocab)) * 1.0,
        "equal": lambda: np.zeros((num, vocab)),
        "wide": lambda: random.normal(size=(num, vocab)) * 60,
    }[kind]()
    return made.astype(np.float32)


KINDS = ["normal", "nearly flat", "peaked", "steps", "two", "equal", "wide"]


def sorted_choice(logits, own):
    """Return the token of a row by the definitions of the filters, each with a full sort."""
    params = own.params
    with np.errstate(all="ignore"):
        scaled = logits / np.float64(params.temperature)
        scores = scaled - scaled.max()
        if 0 < params.top_k < len(scores):
            scores = cut(scores, scores >= np.sort(scores)[-params.top_k])
        if params.top_p < 1.0:
            ordered = np.sort(scores)[::-1]
            sums = np.cumsum(np.exp(ordered))
            num = min(params.top_k or len(sums), len(sums))
            index = int((sums < params.top_p * sums[num - 1]).sum())
            scores = cut(scores, scores >= ordered[index])
        if params.min_p:
            least = logits.max() + params.temperature * math.log(params.min_p)
            scores = cut(scores, logits >= np.float64(least))
        if params.typical_p < 1.0:
            scores = typical(scores, params.typical_p)
        if params.epsilon_cutoff:
            scores = likely(scores, params.epsilon_cutoff)
        if params.eta_cutoff:
            eta, probs = params.eta_cutoff, softmax(scores)
            entropy = -np.where(probs > 0, probs * np.log(probs), 0).sum()
            scores = likely(scores, min(eta, math.sqrt(eta) * math.exp(-entropy)))
        if params.xtc_probability:  # of 1
            probs = softmax(scores)
            scores = cut(scores, probs <= probs[probs >= params.xtc_threshold].min(initial=1.0))
        keyed = bits(np.arange(len(logits)), *keys(own.seed, len(own.output_ids)))
        noisy = scaled - np.log(exponentials(np, keyed))
        return int(np.where(scores > -math.inf, noisy, -math.inf).argmax())


def cut(scores, is_kept):
    return np.where(is_kept, scores, -math.inf)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def typical(scores, mass):
    """Apply transformers' TypicalLogitsWarper; keep tokens as close as the last kept one."""
    probs = softmax(scores)
    surprise = -np.log(probs)
    gaps = np.abs(surprise - np.where(probs > 0, probs * surprise, 0).sum())
    order = np.argsort(gaps)
    index = min(int((np.cumsum(probs[order]) < mass).sum()), len(scores) - 1)
    return cut(scores, gaps <= np.nextafter(gaps[order[index]] * (1 + 1e-12), math.inf))


def likely(scores, least):
    probs = softmax(scores)
    return cut(scores, (probs >= least) | (probs == probs.max()))


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-5, 0.01, 0.3, 0.7, 1.0, 2.0]),
        "typical_p": st.sampled_from([1.0, 0.9999, 0.9, 0.5, 0.1, 1e-3, 1e-30]),
        "top_k": st.sampled_from([0, 0, 0, 2, 40, 1500]),
        "top_p": st.sampled_from([1.0, 1.0, 1.0, 0.97, 0.6]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05]),
        "epsilon_cutoff": st.sampled_from([0.0, 0.0, 0.0, 1e-4, 0.3]),
        "eta_cutoff": st.sampled_from([0.0, 0.0, 0.0, 2e-3, 0.9]),
    }
)


@settings(max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    params=PARAMS,
    vocab=st.sampled_from([1, 2, 7, 300, 5000]),
    masked=st.sampled_from([0.0, 0.5, 0.999]),
    seed=st.integers(0, 2**31),
)
def test_a_sampled_token_equals_that_of_the_sorted_row(kind, params, vocab, masked, seed):
    logits = rows_of(kind, 8, vocab, seed)
    is_masked = np.random.default_rng(seed).random(logits.shape) < masked
    is_masked[:, seed % vocab] = False
    logits[is_masked] = -math.inf
    make = [sequence(seed + i, **params) for i in range(len(logits))]
    expected = [sorted_choice(row, own) for row, own in zip(logits, make, strict=True)]
    assert choose(logits, *make) == expected


@pytest.mark.torch
@settings(max_examples=60)
@given(
    kind=st.sampled_from(["normal", "nearly flat", "peaked", "wide"]),
    temperature=st.sampled_from([0.7, 1.0, 2.0]),
    mass=st.sampled_from([0.2, 0.9, 0.99]),
    seed=st.integers(0, 2**31),
)
def test_typical_p_keeps_the_tokens_of_the_transformers_warper(kind, temperature, mass, seed):
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = rows_of(kind, 1, 2000, seed)
    scores = torch.from_numpy(logits).double() / temperature
    left = warpers.TypicalLogitsWarper(mass)(None, scores)[0].numpy()
    make = [sequence(seed + i, temperature=temperature, typical_p=mass) for i in range(20)]
    assert np.isfinite(left[choose(np.repeat(logits, 20, axis=0), *make)]).all()
    keyed = [bits(np.arange(2000), *keys(own.seed, 0)) for own in make]
    noisy = left - np.log(exponentials(np, np.stack(keyed)))
    assert choose(np.repeat(logits, 20, axis=0), *make) == noisy.argmax(axis=-1).tolist()


@pytest.mark.parametrize("kind", ["normal", "nearly flat", "steps", "equal"])
@pytest.mark.parametrize(
    "filters",
    [
        {"typical_p": 0.9},
        {"typical_p": 0.3},
        {"epsilon_cutoff": 1e-6},
        {"eta_cutoff": 3e-4},
        {"xtc_probability": 1.0, "xtc_threshold": 6e-6},
        {"typical_p": 0.9, "top_p": 0.95, "eta_cutoff": 3e-4},
    ],
    ids="-".join,
)
def test_a_large_flat_vocabulary_is_not_sorted(kind, filters, monkeypatch):
    logits = rows_of(kind, 4, VOCAB, 1)
    make = [sequence(seed, temperature=1.0, **filters) for seed in range(4)]
    expected = [sorted_choice(row, own) for row, own in zip(logits, make, strict=True)]
    sizes = [0]
    for name in ("sort", "partition", "argsort", "argpartition"):
        real = getattr(np, name)
        spy = lambda array, *rest, real=real, **more: (  # noqa: E731
            sizes.append(np.size(array)) or real(array, *rest, **more)
        )
        monkeypatch.setattr(np, name, spy)
    assert choose(logits, *make) == expected
    assert max(sizes) <= (2 if filters == {"typical_p": 0.9} else 2048)


@settings(max_examples=200)
@given(
    numbers=st.lists(st.sampled_from([0.0, 1e-300, 1e-46, 1.0, 1.5, 700.0]), min_size=1),
    copies=st.sampled_from([1, 50, 3000]),
    share=st.floats(0, 1.01),
    seed=st.integers(0, 2**31),
)
@example(numbers=[0.0, 1e-46], copies=3000, share=0.75, seed=0)
def test_the_distance_at_a_cumulative_weight_equals_that_of_sorting(numbers, copies, share, seed):
    random = np.random.default_rng(seed)
    distances = np.repeat(np.array(numbers), copies)
    distances *= random.choice([1.0, 1.0, 0.5, 0.25], len(distances))
    random.shuffle(distances)
    weights = random.integers(0, 9, len(distances)).astype(float)  # sums of integers are exact
    wanted = math.floor(share * weights.sum())
    order = np.argsort(distances)
    index = int((np.cumsum(weights[order]) < wanted).sum())
    expected = distances[order[min(index, len(order) - 1)]]
    assert distance_reached(distances, weights, wanted) == expected
