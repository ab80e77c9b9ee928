"""What every sampler must do."""

import math
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from vlmkit.ask.sampling import SamplingParams
from vlmkit.seams.prompt import Array
from vlmkit.seams.sampler import Row, Sampler
from vlmkit.seams.sequence import Sequence
from vlmkit.testing.arrays import to_numpy
from vlmkit.testing.sequences import new_sequence

ROW = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]
NUM_DRAWS = 4000

examples = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
logit_rows = st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=30)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.7, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.7]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([-1.0, 0.0, 2.0]),
    logit_bias=st.sampled_from([{}, {1: 3.0, 2: -100.0}]),
    min_tokens=st.sampled_from([0, 3, 5]),
)
few_tokens = st.lists(st.integers(0, 3), max_size=5)


class SamplerContract:
    """Inherit, override :meth:`make`, and run pytest.

    Attributes:
        ignores: fields of SamplingParams that this sampler does not follow, and says so.
        is_exact: whether plain sampling follows the softmax of the logits; a sampler that filters
            on its own account does not.
    """

    ignores: frozenset[str] = frozenset()
    is_exact = True

    def make(self) -> Sampler:
        """Return a fresh sampler."""
        raise NotImplementedError

    def array(self, rows: Seq[Seq[float]]) -> Array:
        """Return ``[rows, vocab]`` as an array of the library that this sampler runs on."""
        return np.array(rows, dtype=np.float32)

    # Shape and determinism

    def test_there_is_one_token_for_each_row(self) -> None:
        """Their ids are integers, and lie where the logits do."""
        rows = [[0.0, 9.0, 1.0], [9.0, 0.0, 1.0], [0.0, 1.0, 9.0]]
        logits = self.array(rows)
        picked = self.make().prepare([Row(new_sequence()) for _ in rows])(logits)
        assert picked.shape == (3,)
        assert "int" in str(getattr(picked, "dtype", None)), "token ids are an array of integers"
        assert picked.__dlpack_device__() == logits.__dlpack_device__()
        assert to_numpy(picked).tolist() == [1, 0, 2]

    def test_temperature_zero_takes_the_likeliest(self) -> None:
        """Whatever the seed."""
        assert {self._choose(ROW, seed=seed) for seed in range(50)} == {0}

    @examples
    @given(row=logit_rows, params=some_params, seed=st.integers(-(2**63), 2**63 - 1))
    def test_a_seed_determines_the_choice(
        self, row: list[float], params: SamplingParams, seed: int
    ) -> None:
        """Another sampler chooses the same, and always a token of the vocabulary."""
        first = self._choose(row, params, seed=seed)
        assert first == self._choose(row, params, seed=seed)
        assert 0 <= first < len(row)

    @examples
    @given(row=logit_rows, params=some_params, others=st.lists(some_params, max_size=3))
    def test_neighbours_never_change_a_choice(
        self, row: list[float], params: SamplingParams, others: list[SamplingParams]
    ) -> None:
        """A sequence alone and the same in any place of a batch choose alike."""
        expected = self._choose(row, params, seed=5, prompt=(0,), output_ids=[1, 2])
        for place in range(len(others) + 1):
            batch = [new_sequence((3,), params=other, seed=9) for other in others]
            mine = new_sequence((0,), params=params, seed=5, output_ids=[1, 2])
            batch.insert(place, mine)
            rows = [row[::-1] for _ in batch]
            rows[place] = row
            assert self._sample(rows, batch)[place] == expected

    @pytest.mark.parametrize("top_p", [0.9, 1.0])
    def test_seeds_in_one_batch_draw_as_alone(self, top_p: float) -> None:
        """Each row has its own chance, whoever comes first."""
        params = SamplingParams(temperature=2.0, top_p=top_p)
        sequences = [new_sequence(params=params, seed=seed) for seed in range(30)]
        alone = [self._sample([ROW], [sequence])[0] for sequence in sequences]
        assert self._sample([ROW] * 30, sequences) == alone
        assert self._sample([ROW] * 30, sequences[::-1]) == alone[::-1]

    def test_each_position_draws_anew(self) -> None:
        """One seed does not give one token for ever."""
        params = SamplingParams(temperature=1.0)
        chosen = {
            self._choose([0.0] * 50, params, output_ids=[0] * position) for position in range(40)
        }
        assert len(chosen) > 10

    def test_a_preempted_sequence_chooses_as_before(self) -> None:
        """State that a sampler keeps is a help, never a need."""
        params = SamplingParams(temperature=1.5, frequency_penalty=0.5, presence_penalty=0.5)
        kept, sampler = new_sequence((0, 1), params=params), self.make()
        for _ in range(20):
            again = new_sequence((0, 1), params=params, output_ids=kept.output_ids)
            chosen = self._pick(sampler, [ROW], [Row(kept)])[0]
            assert chosen == self._sample([ROW], [again])[0]
            kept.output_ids.append(chosen)

    # Tokens that are ahead

    @examples
    @given(
        row=logit_rows,
        params=some_params,
        output_ids=few_tokens,
        ahead=few_tokens,
        seed=st.integers(),
    )
    def test_what_is_ahead_counts_as_if_it_were_in_the_answer(
        self,
        row: list[float],
        params: SamplingParams,
        output_ids: list[int],
        ahead: list[int],
        seed: int,
    ) -> None:
        """Noise, penalties and the least length are those of the position, for every draft."""
        fields: dict[str, Any] = {"params": params, "seed": seed, "banned_ids": (3,)}
        fields["eos_ids"] = frozenset({0})
        drafting = new_sequence((2,), output_ids=output_ids, **fields)
        rows = [Row(drafting, tuple(ahead[:num])) for num in range(len(ahead) + 1)]
        held = [
            new_sequence((2,), output_ids=[*output_ids, *each.ahead], **fields) for each in rows
        ]
        logits = [row[num:] + row[:num] for num in range(len(rows))]
        assert self._pick(self.make(), logits, rows) == self._sample(logits, held)

    def test_tokens_of_a_prompt_may_have_no_logit(self) -> None:
        """Some models read tokens that they never say, such as one that stands for a picture."""
        self._needs("repetition_penalty")
        params = SamplingParams(repetition_penalty=1.5)
        for prompt, chosen in (((0, 9, 4), 1), ((9, 4), 0)):
            row = Row(new_sequence(prompt, params=params))
            assert self._pick(self.make(), [[3.0, 2.9, -1.0, -1.1]], [row]) == [chosen]

    def test_what_was_ahead_leaves_no_trace(self) -> None:
        """Drafts may be rejected: what comes instead is chosen as if they had never been there."""
        self._needs("frequency_penalty")
        params = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.1)
        sequence, sampler = new_sequence((3,), params=params, output_ids=[1]), self.make()
        logits = [[1.0, 0.25, 0.0, 0.0]]
        for ahead in [(0, 0), (0,), (2, 1, 2)]:
            self._pick(sampler, logits, [Row(sequence, ahead)])
        assert self._pick(sampler, logits, [Row(sequence)]) == [0]
        assert sequence.output_ids == [1]

    # Distribution

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_draws_follow_the_distribution(self, temperature: float) -> None:
        """Within five standard deviations of the softmax at this temperature."""
        self._needs("temperature")
        if not self.is_exact:
            pytest.skip("this sampler filters on its own account")
        weights = np.exp(np.array(ROW) / temperature)
        expected = weights / weights.sum()
        counts = self._draw(SamplingParams(temperature=temperature))
        for token_id, p in enumerate(expected):
            deviation = math.sqrt(p * (1 - p) / NUM_DRAWS)
            assert abs(counts[token_id] / NUM_DRAWS - p) < 5 * deviation

    def test_top_k_keeps_the_likeliest(self) -> None:
        """Both of two come up, and no third."""
        self._needs("top_k")
        assert set(self._draw(SamplingParams(temperature=1.0, top_k=2))) == {0, 1}

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self) -> None:
        """Probabilities of the row are 0.56, 0.21, 0.13, 0.08, ...: 0.7 needs two of them."""
        self._needs("top_p")
        assert set(self._draw(SamplingParams(temperature=1.0, top_p=0.7))) == {0, 1}

    def test_min_p_drops_what_is_unlikely_beside_the_likeliest(self) -> None:
        """Ratios to the first are 0.37, 0.22, 0.14, ...: 0.3 keeps two."""
        self._needs("min_p")
        assert set(self._draw(SamplingParams(temperature=1.0, min_p=0.3))) == {0, 1}

    def test_filters_work_on_rows_of_every_size(self) -> None:
        """A large vocabulary is not sorted whole, but nothing of it is lost."""
        self._needs("top_k")
        row = [0.0] * 5000
        row[4321] = row[17] = 20.0
        for params in (
            SamplingParams(temperature=1.0, top_k=2),
            SamplingParams(temperature=1.0, top_p=0.99),
        ):
            chosen = {self._choose(row, params, seed=seed) for seed in range(30)}
            assert chosen == {17, 4321}

    # Adjustments

    def test_a_bias_forces_and_forbids(self) -> None:
        """It is added to the logit."""
        self._needs("logit_bias")
        assert self._choose(ROW, SamplingParams(logit_bias={5: 100.0})) == 5
        assert self._choose(ROW, SamplingParams(logit_bias={0: -100.0})) == 1

    def test_banned_tokens_are_never_chosen(self) -> None:
        """However likely they are, and whatever the request adds to them."""
        row = [90.0, 80.0, 1.0, 0.0]
        for params in (
            SamplingParams(),
            SamplingParams(temperature=2.0),
            SamplingParams(logit_bias={0: 100.0, 1: 100.0}),
        ):
            assert self._choose(row, params, banned_ids=[0, 1]) not in {0, 1}

    def test_the_end_waits_for_the_minimum(self) -> None:
        """With ``min_tokens`` of 2 the first and second token are no end, the third may be."""
        self._needs("min_tokens")
        params = SamplingParams(min_tokens=2)
        chosen = [
            self._choose(ROW, params, eos_ids=[0], output_ids=[1] * length) for length in range(3)
        ]
        assert chosen == [1, 1, 0]

    def test_a_presence_penalty_counts_once_and_only_in_the_answer(self) -> None:
        """A token of the prompt is not punished."""
        self._needs("presence_penalty")
        params, row = SamplingParams(presence_penalty=0.5), [1.0, 0.75, 0.0]
        assert self._choose(row, params, prompt=[0]) == 0
        assert self._choose(row, params, output_ids=[0]) == 1
        assert self._choose([1.0, 0.25, 0.0], params, output_ids=[0, 0, 0]) == 0

    def test_a_frequency_penalty_counts_every_time(self) -> None:
        """Once is not enough here, twice is."""
        self._needs("frequency_penalty")
        params, row = SamplingParams(frequency_penalty=0.5), [1.0, 0.25, 0.0]
        assert self._choose(row, params, prompt=[0, 0, 0]) == 0
        assert self._choose(row, params, output_ids=[0]) == 0
        assert self._choose(row, params, output_ids=[0, 0]) == 1

    def test_a_repetition_penalty_weakens_prompt_and_answer(self) -> None:
        """It divides positive logits and multiplies negative ones."""
        self._needs("repetition_penalty")
        params = SamplingParams(repetition_penalty=2.0)
        assert self._choose([1.0, 0.75, -9.0], params, prompt=[0]) == 1
        assert self._choose([-1.0, -1.5, -9.0], params, prompt=[2], output_ids=[0]) == 1
        assert self._choose([1.0, 0.75, -9.0], params, prompt=[0, 1]) == 0

    def test_logits_of_minus_infinity_are_never_chosen(self) -> None:
        """An engine may mask columns itself."""
        row = [-math.inf, 0.0, -math.inf, 0.0]
        params = SamplingParams(temperature=2.0)
        assert {self._choose(row, params, seed=seed) for seed in range(50)} == {1, 3}

    @pytest.mark.parametrize("value", [math.nan, -math.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_without_a_finite_value_harms_no_other(
        self, value: float, temperature: float
    ) -> None:
        """It gets a token of the vocabulary, whichever: its request fails anyway."""
        params = SamplingParams(temperature=temperature, top_p=0.9)
        sequences = [new_sequence(params=params, seed=seed) for seed in range(3)]
        good, bad = ROW[::-1], [value] * len(ROW)
        picked = self._sample([good, bad, good], sequences)
        expected = self._sample([good, good], [sequences[0], sequences[2]])
        assert [picked[0], picked[2]] == expected
        assert 0 <= picked[1] < len(ROW)

    def test_the_logits_stay_as_they_are(self) -> None:
        """The array belongs to the engine."""
        logits = self.array([ROW])
        before = np.array(np.from_dlpack(logits))
        params = SamplingParams(temperature=1.0, logit_bias={1: 5.0}, presence_penalty=1.0)
        self.make().prepare([Row(new_sequence(params=params, output_ids=[0]))])(logits)
        np.testing.assert_array_equal(np.from_dlpack(logits), before)

    # Helpers

    def _needs(self, field: str) -> None:
        if field in self.ignores:
            pytest.skip(f"this sampler does not follow {field}")

    def _sample(self, rows: Seq[Seq[float]], sequences: Seq[Sequence]) -> list[int]:
        return self._pick(self.make(), rows, [Row(sequence) for sequence in sequences])

    def _pick(self, sampler: Sampler, logits: Seq[Seq[float]], rows: Seq[Row]) -> list[int]:
        picked = sampler.prepare(rows)(self.array(logits))
        return [int(token_id) for token_id in to_numpy(picked)]

    def _choose(
        self,
        row: Seq[float],
        params: SamplingParams | None = None,
        *,
        seed: int = 0,
        prompt: Seq[int] = (3,),
        output_ids: Seq[int] = (),
        eos_ids: Seq[int] = (),
        banned_ids: Seq[int] = (),
    ) -> int:
        sequence = new_sequence(
            prompt,
            params=params,
            seed=seed,
            output_ids=output_ids,
            eos_ids=frozenset(eos_ids),
            banned_ids=tuple(banned_ids),
        )
        return self._sample([row], [sequence])[0]

    def _draw(self, params: SamplingParams) -> Counter[int]:
        """Return how often each token of ROW is chosen by as many seeds as NUM_DRAWS."""
        sequences = [new_sequence(params=params, seed=seed) for seed in range(NUM_DRAWS)]
        return Counter(self._sample([ROW] * NUM_DRAWS, sequences))
