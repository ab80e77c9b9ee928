"""The plugin keeps vlmkit's contract, on NumPy and wherever else the logits are."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from vlmkit.interfaces.sampler import Row, Sampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing import SamplerContract, new_sequence
from vlmkit_typical import TypicalSampler

HOT = SamplingParams(temperature=1.0)
LOGITS = np.log(np.array([[0.6, 0.1, 0.1, 0.1, 0.1]], dtype=np.float32))


class TestTypicalSampler(SamplerContract):
    def make(self) -> Sampler:
        return TypicalSampler()


def draws(mass: float, logits: Any, **fields: Any) -> Counter[int]:
    sequences = [new_sequence(params=HOT, seed=seed, **fields) for seed in range(300)]
    pick: Any = TypicalSampler(mass).prepare([Row(sequence) for sequence in sequences])
    return Counter(pick(np.repeat(logits, len(sequences), axis=0)).tolist())


def test_the_least_surprising_token_is_not_always_typical() -> None:
    logits = np.log(np.array([[0.6, *[0.01] * 40]], dtype=np.float32))  # mean surprise 2.1 nats
    assert set(draws(0.5, logits)) == {0}
    flatter = np.log(np.array([[0.3, *[0.0175] * 40]], dtype=np.float32))  # mean 3.2 nats
    assert 0 not in draws(0.5, flatter)


def test_a_mass_of_one_keeps_everything() -> None:
    assert set(draws(1.0, LOGITS)) == {0, 1, 2, 3, 4}


def test_a_small_mass_keeps_the_nearest_to_the_mean() -> None:
    assert set(draws(0.3, LOGITS)) == {0}


def test_others_come_up_where_every_typical_token_is_forbidden() -> None:
    assert set(draws(0.3, LOGITS, banned_ids=(0,))) == {1, 2, 3, 4}


def test_rows_may_be_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    rows = [Row(new_sequence(params=HOT, seed=seed)) for seed in range(20)]
    logits: Any = np.repeat(LOGITS, 20, axis=0)
    pick: Any = TypicalSampler(0.9).prepare(rows)
    assert np.array_equal(pick(torch.from_numpy(logits)), pick(logits))
