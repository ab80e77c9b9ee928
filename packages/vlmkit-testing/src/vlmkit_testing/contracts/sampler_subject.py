"""The subject of the sampler contract, and shared helpers. No tests."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sampler import Row, Sampler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.sequences import new_sequence

ROW = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]
FRESH = 3  # a token of ROW that stands for one that came only once, so that nothing is repeated
FOLLOWED: dict[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=1.5),
    "top_p": SamplingParams(temperature=1.0, top_p=0.3),
    "top_k": SamplingParams(temperature=1.0, top_k=1),
    "min_p": SamplingParams(temperature=1.0, min_p=1.0),
    "typical_p": SamplingParams(temperature=1.0, typical_p=0.15),
    "epsilon_cutoff": SamplingParams(temperature=1.0, epsilon_cutoff=0.5),
    "eta_cutoff": SamplingParams(temperature=1.0, eta_cutoff=0.9),
    "repetition_penalty": SamplingParams(repetition_penalty=10.0),
    "xtc_probability": SamplingParams(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.05),
    "dry_multiplier": SamplingParams(dry_multiplier=100.0, dry_allowed_length=3),
    "repeat_last_n": SamplingParams(repeat_last_n=1),
    "presence_penalty": SamplingParams(presence_penalty=2.0),
    "frequency_penalty": SamplingParams(frequency_penalty=2.0),
    "logit_bias": SamplingParams(logit_bias={5: 100.0}),
    "sequence_bias": SamplingParams(sequence_bias=(((5,), 100.0),)),
    "bad_words_ids": SamplingParams(bad_words_ids=((FRESH, 0),)),
    "no_repeat_ngram_size": SamplingParams(no_repeat_ngram_size=5),
    "suppress_tokens": SamplingParams(suppress_tokens=(0,)),
    "begin_suppress_tokens": SamplingParams(begin_suppress_tokens=(0,)),
    "min_tokens": SamplingParams(min_tokens=100),
}
"""What a sampler follows of a request, each with values that show it."""

logit_rows = st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=30)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.7, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.7]),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.0, 1.5]),
    dry_penalty_last_n=st.sampled_from([-1, 4]),
    repeat_last_n=st.sampled_from([-1, -1, 0, 2]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([-1.0, 0.0, 2.0]),
    logit_bias=st.sampled_from([{}, {1: 3.0, 2: -100.0}]),
    typical_p=st.sampled_from([1.0, 1.0, 0.5]),
    epsilon_cutoff=st.sampled_from([0.0, 0.0, 0.1]),
    eta_cutoff=st.sampled_from([0.0, 0.0, 0.1]),
    sequence_bias=st.sampled_from([(), (((1,), 2.0), ((0, 2), -3.0))]),
    bad_words_ids=st.sampled_from([(), ((1, 2), (2, 2, 3))]),
    no_repeat_ngram_size=st.sampled_from([0, 0, 2]),
    suppress_tokens=st.sampled_from([(), (1,)]),
    begin_suppress_tokens=st.sampled_from([(), (2,)]),
    min_tokens=st.sampled_from([0, 3, 5]),
)
few_tokens = st.lists(st.integers(0, 3), max_size=5)


def mixed_params(chance: np.random.Generator) -> SamplingParams:
    """Return parameters of any kind: greedy, filtered, penalised, or combined."""
    return SamplingParams(
        temperature=float(chance.choice([0.0, 0.5, 1.0, 2.0])),
        top_p=float(chance.choice([0.5, 0.9, 1.0, 1.0])),
        top_k=int(chance.choice([0, 0, 1, 20, 1000])),
        min_p=float(chance.choice([0.0, 0.0, 0.5])),
        repetition_penalty=float(chance.choice([1.0, 1.0, 1.5])),
        xtc_probability=float(chance.choice([0.0, 0.0, 0.5])),
        dry_multiplier=float(chance.choice([0.0, 0.0, 2.0])),
        repeat_last_n=int(chance.choice([-1, -1, 1, 3])),
        presence_penalty=float(chance.choice([0.0, 0.0, 1.0])),
        frequency_penalty=float(chance.choice([0.0, 0.0, -1.0, 0.5])),
        logit_bias={3: 1.0} if chance.random() < 0.3 else {},
        typical_p=float(chance.choice([1.0, 1.0, 1.0, 0.5])),
        epsilon_cutoff=float(chance.choice([0.0, 0.0, 0.0, 0.02])),
        eta_cutoff=float(chance.choice([0.0, 0.0, 0.0, 0.02])),
        sequence_bias=(((4,), 1.0), ((5, 6), 2.0)) if chance.random() < 0.2 else (),
        bad_words_ids=((9,), (10, 11)) if chance.random() < 0.2 else (),
        no_repeat_ngram_size=int(chance.choice([0, 0, 0, 1, 2])),
        suppress_tokens=(12, 13) if chance.random() < 0.2 else (),
        begin_suppress_tokens=(14,) if chance.random() < 0.2 else (),
        min_tokens=int(chance.choice([0, 0, 4])),
    )


class SamplerSubject:
    """What a sampler's author provides, and what the tests share."""

    @property
    def ignores(self) -> frozenset[str]:
        """The fields of SamplingParams that the sampler states it ignores."""
        return frozenset(getattr(self.make(), "ignores", ()))

    @property
    def is_exact(self) -> bool:
        """Whether the sampler states that plain sampling follows the softmax.

        A sampler with filters of its own does not.
        """
        return bool(getattr(self.make(), "is_exact", True))

    def make(self) -> Sampler:
        """Return a new sampler."""
        raise NotImplementedError

    def array(self, rows: Seq[Seq[float]]) -> Array:
        """Return ``[rows, vocab]`` as an array of the library that this sampler runs on."""
        return np.array(rows, dtype=np.float32)

    # Helpers

    def needs(self, *fields: str) -> None:
        """Skip a test if the sampler ignores some fields."""
        if ignored := self.ignores.intersection(fields):
            pytest.skip(f"this sampler says that it ignores {', '.join(sorted(ignored))}")

    def needs_exactness(self) -> None:
        """Skip a test if the sampler is not exact."""
        self.needs("temperature")
        if not self.is_exact:
            pytest.skip("this sampler says that it is not exact")

    def pick(self, sampler: Sampler, logits: Seq[Seq[float]], rows: Seq[Row]) -> list[int]:
        """Return the tokens that a sampler chooses."""
        picked = sampler.prepare(rows)(self.array(logits))
        return [int(token_id) for token_id in to_numpy(picked)]

    def sample(self, rows: Seq[Seq[float]], sequences: Seq[Sequence]) -> list[int]:
        """Return the tokens that a new sampler chooses for sequences without drafts."""
        return self.pick(self.make(), rows, [Row(sequence) for sequence in sequences])

    def choose(
        self,
        row: Seq[float],
        params: SamplingParams | None = None,
        *,
        prompt: Seq[int] = (FRESH,),
        **fields: Any,
    ) -> int:
        """Return the token that a new sampler chooses for a sequence alone."""
        return self.sample([row], [new_sequence(prompt, params=params, **fields)])[0]

    def draw(
        self, row: Seq[float], params: SamplingParams, num_draws: int, **fields: Any
    ) -> list[int]:
        """Return the tokens that a new sampler chooses for a number of seeds, in one batch."""
        sequences = [
            new_sequence((FRESH,), params=params, seed=seed, **fields) for seed in range(num_draws)
        ]
        return self.sample([row] * num_draws, sequences)
