"""DRY and XTC equal the definitions of llama.cpp, with drafts and without."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.interfaces.sampler import Row
from vlmkit.running.sampling.dry import DryRule
from vlmkit.running.sampling.dry_breakers import SequenceBreakers
from vlmkit.running.sampling.random_numbers import bits, exponentials, keys
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import MAX_DRY_TOKENS, SamplingParams
from vlmkit_testing import new_sequence


def penalties_by_definition(tokens, params, breakers):
    """Compare every earlier position with the end of the window, token by token."""
    window = tokens[-(params.dry_penalty_last_n % (MAX_DRY_TOKENS + 1)) :]
    num, allowed = len(window), params.dry_allowed_length
    limit = num
    for back in range(num):
        behind = tuple(window[num - back :])
        tails = breakers.get(window[num - 1 - back], ())
        fitting = [len(tail) for tail in tails if behind[: len(tail)] == tail]
        if fitting:
            limit = back - max(fitting)
            break
    if num <= allowed or limit < allowed:
        return {}
    longest = {}
    for index in range(num - 1):
        length = 0
        while length <= index and window[index - length] == window[num - 1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed:
            token_id = window[index + 1]
            longest[token_id] = max(length, longest.get(token_id, 0))
    most = int(88.7228391 / math.log(params.dry_base)) if params.dry_base > 1 else 10**9
    return {
        token_id: params.dry_multiplier * params.dry_base ** min(length - allowed, most)
        for token_id, length in longest.items()
        if () not in breakers.get(token_id, ())
    }


def found(rule, row):
    changes = rule.at(row)
    assert (changes.offsets == 0).all()
    assert (changes.factors == 1).all()
    return dict(zip(changes.token_ids.tolist(), (-changes.shifts).tolist(), strict=True))


TOKENS = st.integers(0, 2)
TAILS = st.lists(TOKENS, max_size=3).map(tuple)


@settings(max_examples=400)
@given(
    prompt=st.lists(TOKENS, min_size=1, max_size=14),
    output=st.lists(TOKENS, max_size=14),
    ahead=st.lists(TOKENS, max_size=4),
    breakers=st.dictionaries(TOKENS, st.lists(TAILS, min_size=1, max_size=2), max_size=2),
    base=st.sampled_from([1.0, 1.75, 50.0]),
    allowed=st.integers(0, 3),
    last_n=st.sampled_from([-1, -1, 1, 3, 6, 12]),
)
def test_penalties_match_their_definition(prompt, output, ahead, breakers, base, allowed, last_n):
    params = SamplingParams(
        dry_multiplier=0.5, dry_base=base, dry_allowed_length=allowed, dry_penalty_last_n=last_n
    )
    sequence = new_sequence(prompt, params=params, dry_breakers=breakers, max_tokens=99)
    rule = DryRule(sequence)
    for token_id in [*output, None]:  # an answer that grows, each time with drafts ahead
        own = [*prompt, *sequence.output_ids]
        for num in range(len(ahead) + 1):
            expected = penalties_by_definition(own + ahead[:num], params, breakers)
            made = found(rule, Row(sequence, tuple(ahead[:num])))
            assert made == pytest.approx(expected)
        if token_id is not None:
            sequence.output_ids.append(token_id)
    again = DryRule(sequence)  # as after a sequence was copied
    assert found(again, Row(sequence)) == found(rule, Row(sequence))


def test_a_penalty_is_finite_for_runs_of_any_length():
    params = SamplingParams(dry_multiplier=100.0, dry_base=100.0)
    sequence = new_sequence([1] * 4000, params=params, max_tokens=9)
    made = found(DryRule(sequence), Row(sequence))
    assert made == {1: pytest.approx(1e38)}
    logits = np.array([[0.0, 5.0, -1.0]], np.float32)
    assert ArraySampler().prepare([Row(sequence)])(logits).tolist() == [0]


def test_the_largest_window_of_one_token_takes_little_time():
    params = SamplingParams(dry_multiplier=1.0)
    sequence = new_sequence([7] * (2 * MAX_DRY_TOKENS), params=params, max_tokens=99)
    rule = DryRule(sequence)
    found(rule, Row(sequence))
    began_s = time.thread_time()
    for _ in range(50):
        sequence.output_ids.append(7)
        found(rule, Row(sequence))
    print(f"{1000 * (time.thread_time() - began_s) / 50:.2f} ms for each token")


class TextVocabulary:
    """A vocabulary of given texts; encoding takes the longest match first."""

    def __init__(self, texts):
        self.texts = [text.encode() for text in texts]
        self.vocab_size = len(texts)

    def token_bytes(self, token_id):
        return self.texts[token_id]

    def encode(self, text):
        left, made = text.encode(), []
        while left:
            fitting = [i for i, own in enumerate(self.texts) if own and left.startswith(own)]
            made.append(max(fitting, key=lambda i: len(self.texts[i])))
            left = left[len(self.texts[made[-1]]) :]
        return made


def breakers_by_definition(vocabulary, text):
    """Return the result of llama.cpp's get_overlapping_token_sequences."""
    made = {}
    for token_id, spelling in enumerate(each.decode() for each in vocabulary.texts):
        if text in spelling:
            made[token_id] = {()}
            continue
        for index in range(len(spelling)):
            begun = spelling[index:]
            if text.startswith(begun) and len(begun) < len(text):
                made.setdefault(token_id, set()).add(tuple(vocabulary.encode(text[len(begun) :])))
    usual = vocabulary.encode(text)
    if len(usual) > 1:
        made.setdefault(usual[0], set()).add(tuple(usual[1:]))
    return made


@settings(max_examples=200)
@given(
    texts=st.lists(st.text("ab:", max_size=4), max_size=12),
    breaker=st.text("ab:", min_size=1, max_size=5),
)
def test_sequence_breakers_match_their_definition(texts, breaker):
    vocabulary = TextVocabulary(["a", "b", ":", *texts])
    made = SequenceBreakers(vocabulary, 99).of([breaker])
    expected = breakers_by_definition(vocabulary, breaker)
    assert {token_id: set(tails) for token_id, tails in made.items()} == expected
    assert made.get(1000) is None


def xtc_by_definition(logits, params):
    """Sort the tokens; drop those over the threshold except the least likely of them."""
    order = np.argsort(-logits)
    scaled = logits[order].astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    num = int((probs / probs.sum() >= params.xtc_threshold).sum())
    return set(order[max(0, num - 1) :].tolist())


LIBRARIES = [
    pytest.param(lambda logits: logits, id="numpy"),
    pytest.param(
        lambda logits: pytest.importorskip("torch").from_numpy(logits),
        id="torch",
        marks=pytest.mark.torch,
    ),
]


@pytest.mark.parametrize("array", LIBRARIES)
@settings(max_examples=60)
@given(
    vocab=st.sampled_from([2, 9, 400]),
    threshold=st.sampled_from([1e-4, 0.02, 0.1, 0.3, 0.5, 0.51]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    seed=st.integers(0, 2**31),
)
def test_xtc_keeps_the_tokens_of_its_definition(array, vocab, threshold, temperature, seed):
    logits = (np.random.default_rng(seed).normal(size=vocab) * 3).astype(np.float32)
    params = SamplingParams(temperature=temperature, xtc_probability=1.0, xtc_threshold=threshold)
    sequences = [new_sequence((0,), params=params, seed=n, max_tokens=9) for n in range(20)]
    drawn = ArraySampler().prepare([Row(own) for own in sequences])(array(np.stack([logits] * 20)))
    kept = xtc_by_definition(logits, params) if threshold <= 0.5 else set(range(vocab))
    left = np.full(vocab, -math.inf)
    left[list(kept)] = logits[list(kept)] / np.float64(temperature)
    keyed = np.stack([bits(np.arange(vocab), *keys(n, 0)) for n in range(20)])
    noisy = left - np.log(exponentials(np, keyed))
    assert drawn.tolist() == noisy.argmax(axis=-1).tolist()
