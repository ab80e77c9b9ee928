"""The sampler keeps vlmkit's contract, and draws near the top alone."""

from typing import Any

import numpy as np

from vlmkit.interfaces.sampler import Row, Sampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing import SamplerContract, new_sequence
from vlmkit_yourname.plugin import SigmaSampler, SigmaSettings

HOT = SamplingParams(temperature=2.0)
LOGITS = np.array([[5.0, 4.5, 0.0, 0.0, 0.0, 0.0]], dtype=np.float32)  # deviation 2.2


class TestSigmaSampler(SamplerContract):
    def make(self) -> Sampler:
        return SigmaSampler()


def drawn(n: float, params: SamplingParams = HOT, **fields: Any) -> set[int]:
    rows = [Row(new_sequence(params=params, seed=seed, **fields)) for seed in range(300)]
    pick = SigmaSampler(SigmaSettings(n=n)).prepare(rows)
    return set(np.from_dlpack(pick(np.repeat(LOGITS, len(rows), axis=0))).tolist())


def test_what_is_far_from_the_top_is_never_drawn() -> None:
    assert drawn(1.0) == {0, 1}


def test_a_wide_range_keeps_everything() -> None:
    assert drawn(100.0) == {0, 1, 2, 3, 4, 5}


def test_others_come_up_where_all_that_is_near_is_banned() -> None:
    assert drawn(1.0, banned_ids=(0, 1)) == {2, 3, 4, 5}
