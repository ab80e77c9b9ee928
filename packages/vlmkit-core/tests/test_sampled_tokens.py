"""Sampled tokens come with the model's own log-probabilities, whatever the sampler."""

import math

import numpy as np
import pytest

from vlmkit.errors import EngineError
from vlmkit.running.sampling.sampled_tokens import readable, start_samples
from vlmkit.types.sampling import SamplingParams

SILENT = SamplingParams()


def samples(*arguments):
    return start_samples(*arguments)()


def logits_of(seed, num=1, vocab=50):
    return np.random.default_rng(seed).normal(size=(num, vocab)).astype(np.float32) * 3


def log_softmax(row):
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def requesting(num_top=0, **fields):
    return SamplingParams(logprobs=True, top_logprobs=num_top, **fields)


def test_log_probabilities_are_the_models_own_whatever_the_sampling_parameters():
    logits = logits_of(3)
    params = requesting(3, temperature=0.5, logit_bias={7: 50.0})
    sample = samples(logits, np.array([7]), [params])[0]
    expected = log_softmax(logits[0])
    assert sample.token_id == 7
    assert sample.logprob == pytest.approx(expected[7], abs=1e-5)
    assert [top.token_id for top in sample.top] == list(np.argsort(-expected)[:3])
    assert [top.logprob for top in sample.top] == pytest.approx(np.sort(expected)[:-4:-1], abs=1e-5)


def test_only_rows_that_request_log_probabilities_get_them():
    logits = logits_of(4, 3)
    first, second, third = samples(
        logits, np.array([1, 2, 3]), [requesting(), SILENT, requesting(2)]
    )
    assert first.logprob == pytest.approx(log_softmax(logits[0])[1], abs=1e-5)
    assert first.top == ()
    assert (second.logprob, second.top) == (None, ())
    assert third.logprob == pytest.approx(log_softmax(logits[2])[3], abs=1e-5)
    assert len(third.top) == 2


def test_the_rank_of_a_given_token_does_not_depend_on_other_rows():
    logits = np.round(logits_of(10, 6, vocab=300))  # with many equal logits
    tokens = np.array([3, 299, 0, 7, 150, 20])
    order = np.argsort(-logits, axis=-1, kind="stable")
    expected = [list(row).index(token) + 1 for row, token in zip(order, tokens, strict=True)]
    together = samples(logits, tokens, [requesting(2)] * 6, dict(enumerate(tokens.tolist())))
    assert [sample.rank for sample in together] == expected
    alone = [samples(logits[[n]], tokens[[n]], [requesting()], {0: tokens[n]})[0] for n in range(6)]
    assert [sample.rank for sample in alone] == expected
    params = [requesting(1), requesting(), SILENT, SILENT, requesting(), requesting()]
    beside = samples(logits, tokens, params, {0: 3, 2: 0, 4: 150, 5: 20})
    expected_ranks = [None if n in (1, 2, 3) else rank for n, rank in enumerate(expected)]
    assert [sample.rank for sample in beside] == expected_ranks


def test_the_first_of_equal_tokens_are_reported_whatever_other_rows_request():
    logits = np.round(logits_of(5, 4, vocab=500) / 3)
    tokens = np.zeros(4, int)
    alone = [samples(logits[i : i + 1], tokens[:1], [requesting(4)])[0] for i in range(4)]
    together = samples(logits, tokens, [requesting(4)] * 4)
    beside = samples(logits, tokens, [requesting(20), requesting(4), SILENT, requesting(1)])
    assert together == alone
    assert beside[1] == alone[1]
    for row, sample in zip(logits, together, strict=True):
        order = np.lexsort((np.arange(500), -row))[:4]
        assert [top.logprob for top in sample.top] == pytest.approx(
            log_softmax(row)[order], abs=1e-5
        )


def test_a_row_can_request_more_top_tokens_than_the_vocabulary_has():
    sample = samples(logits_of(6, vocab=5), np.array([0]), [requesting(20)])[0]
    assert sorted(top.token_id for top in sample.top) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_token_without_a_finite_logit_is_an_error(value):
    logits = logits_of(7, 2)
    logits[1, 3] = value
    assert len(samples(logits, np.array([3, 2]), [SILENT, SILENT])) == 2
    with pytest.raises(EngineError, match="without a finite value"):
        samples(logits, np.array([3, 3]), [SILENT, SILENT])


@pytest.mark.parametrize("token_ids", [[1, 2], np.array([1]), np.array([[1], [2]]), None])
def test_a_wrong_number_of_token_ids_is_an_error(token_ids):
    with pytest.raises(EngineError, match="something other than 2 token ids"):
        samples(logits_of(8, 2), token_ids, [SILENT, SILENT])


@pytest.mark.parametrize("token_id", [-1, 50, 10**12])
def test_a_token_outside_the_vocabulary_is_an_error(token_id):
    with pytest.raises(EngineError, match=f"the token id {token_id} of 50"):
        samples(logits_of(9, 2), np.array([0, token_id]), [SILENT, requesting()])


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "float32"])
def test_logits_in_host_memory_of_another_library_are_not_copied(kind):
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(logits_of(10, 2)).to(getattr(torch, kind))
    found = readable(logits)
    assert type(found) is np.ndarray
    assert np.array_equal(found, logits.float().numpy())
    if kind == "float32":
        assert found.ctypes.data == logits.data_ptr()
    token_ids = torch.argmax(logits, dim=-1)
    picked = [sample.token_id for sample in samples(found, token_ids, [SILENT, requesting(1)])]
    assert picked == token_ids.tolist()
