"""What every sampler must do: what a choice depends on, and what not.

The rows are nearly flat, so that any influence on a draw changes it.
"""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.examples import examples
from vlmkit_testing.contracts.sampler_subject import (
    FOLLOWED,
    ROW,
    SamplerSubject,
    few_tokens,
    logit_rows,
    mixed_params,
    some_params,
)
from vlmkit_testing.contracts.sequences import new_sequence

NUM_ROWS = 64
VOCAB_SIZE = 64
NUM_STEPS = 40
NUM_ANSWERS = 6  # to one prompt
BRIEF = (
    SamplingParams(min_tokens=3),
    SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.05),
    SamplingParams(no_repeat_ngram_size=2),
    SamplingParams(dry_multiplier=100.0, dry_allowed_length=1),
    SamplingParams(repeat_last_n=2, repetition_penalty=10.0, frequency_penalty=1.0),
    SamplingParams(bad_words_ids=((0, 1), (2,), (1, 1, 2))),
)
"""Parameters whose effect begins, ends or changes within few tokens."""

SLOT = MediaSlot(0, 2, bytes(32), {}, 2)


def flat_rows(num_rows: int) -> list[list[float]]:
    """Return different rows that are nearly flat."""
    rows = np.random.default_rng(11).normal(size=(num_rows, VOCAB_SIZE)) * 0.3
    found: list[list[float]] = rows.astype(np.float32).tolist()
    return found


def mixed_sequences(num: int) -> list[Sequence]:
    """Return sequences whose parameters, tokens and seeds differ."""
    chance = np.random.default_rng(12)
    return [
        new_sequence(
            chance.integers(0, VOCAB_SIZE, 5).tolist(),
            params=mixed_params(chance),
            seed=int(chance.integers(-(2**62), 2**62)),
            output_ids=chance.integers(0, VOCAB_SIZE, chance.integers(0, 9)).tolist(),
            eos_ids=frozenset({0}),
            banned_ids=(7, 8) if chance.random() < 0.3 else (),
        )
        for _ in range(num)
    ]


class SamplerBatchContract(SamplerSubject):
    """The part of the contract about neighbours, earlier calls and drafts."""

    @examples
    @given(row=logit_rows, params=some_params, seed=st.integers(-(2**63), 2**63 - 1))
    def test_a_seed_determines_the_choice(
        self, row: list[float], params: SamplingParams, seed: int
    ) -> None:
        """A second sampler chooses the same tokens, all within the vocabulary."""
        first = self.choose(row, params, seed=seed)
        assert first == self.choose(row, params, seed=seed)
        assert 0 <= first < len(row)

    # Neighbours

    def test_neighbours_never_change_a_choice(self) -> None:
        """A sequence gets the same token alone, among 64 in any order, and at every batch size."""
        rows, sequences = flat_rows(NUM_ROWS), mixed_sequences(NUM_ROWS)
        alone = [self._one(row, each) for row, each in zip(rows, sequences, strict=True)]
        orders = [range(NUM_ROWS), range(NUM_ROWS)[::-1]]
        orders.append(np.random.default_rng(13).permutation(NUM_ROWS).tolist())
        for order in orders:
            found = self.sample([rows[i] for i in order], [_anew(sequences[i]) for i in order])
            assert found == [alone[i] for i in order], "what else is in a batch changed a choice"
        start = 0
        for size in (2, 3, 4, 5, 7, 8, 15, 16):
            part = slice(start, start + size)
            found = self.sample(rows[part], [_anew(each) for each in sequences[part]])
            assert found == alone[part], f"a choice is another one in a batch of {size}"
            start += size

    @pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 1100, 5000])
    def test_neighbours_never_change_a_choice_of_equal_logits(self, vocab_size: int) -> None:
        """Which of equals is chosen depends on the row alone, in vocabularies of any size."""
        num_rows = min(NUM_ROWS, 2**17 // vocab_size)
        noise = np.random.default_rng(16).normal(size=(num_rows, vocab_size)) * 2
        rows: list[list[float]] = np.round(noise).astype(np.float32).tolist()
        sequences = mixed_sequences(num_rows)
        for sequence in sequences[::3]:
            sequence.params = SamplingParams()
        alone = [self._one(row, each) for row, each in zip(rows, sequences, strict=True)]
        assert self.sample(rows, mixed_again(sequences)) == alone
        assert self.sample(rows[::-1], mixed_again(sequences)[::-1]) == alone[::-1]
        most = num_rows // 3
        assert self.sample(rows[:most], mixed_again(sequences)[:most]) == alone[:most]

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(temperature=1.0),
            SamplingParams(temperature=2.0, top_p=0.9),
            SamplingParams(temperature=1.0, top_k=50, min_p=0.01),
        ],
        ids=["plain", "top-p", "top-k and min-p"],
    )
    def test_equal_rows_differ_by_their_seeds_alone(self, params: SamplingParams) -> None:
        """Equal logits in every row: each row draws on its own, at any index."""
        self.needs("temperature")
        row = flat_rows(1)[0]
        sequences = [new_sequence(params=params, seed=seed) for seed in range(NUM_ROWS)]
        alone = [self._one(row, sequence) for sequence in sequences]
        assert len(set(alone)) > 1, "64 seeds draw one token"
        assert self.sample([row] * NUM_ROWS, sequences) == alone
        assert self.sample([row] * NUM_ROWS, sequences[::-1]) == alone[::-1]
        twins = [new_sequence(params=params, seed=5) for _ in range(NUM_ROWS)]
        assert set(self.sample([row] * NUM_ROWS, twins)) == {alone[5]}

    def test_answers_to_one_prompt_do_not_mix(self) -> None:
        """They share a prompt and parameters, and differ in their tokens and seeds."""
        chance, prompt = np.random.default_rng(17), Prompt(tuple(range(20)))
        both = SamplingParams(temperature=1.0, frequency_penalty=1.5, repetition_penalty=1.5)
        for params in (both, *FOLLOWED.values()):
            sampler, rows = self.make(), flat_rows(NUM_ANSWERS)
            answers = [new_sequence(prompt, params=params, seed=n) for n in range(NUM_ANSWERS)]
            for num_tokens in (0, 1, 7):
                for each in answers:
                    each.output_ids.extend(chance.integers(0, 20, num_tokens).tolist())
                alone = [self._one(row, each) for row, each in zip(rows, answers, strict=True)]
                found = self.pick(sampler, rows, [Row(each) for each in answers])
                assert found == alone, f"answers to one prompt mix with {params}"

    def test_a_choice_depends_on_nothing_else_of_a_sequence(self) -> None:
        """Equal requests get equal tokens."""
        rows, sequences = flat_rows(NUM_ROWS), mixed_sequences(NUM_ROWS)
        others = [
            dataclasses.replace(
                _anew(each),
                id=f"another-{number}",
                scope=b"another",
                priority=number,
                max_tokens=1000,
                num_computed_tokens=number,
                num_cached_tokens=3,
                drafts=(1, 2),
                is_held=True,
                prompt=Prompt(each.prompt.token_ids, (SLOT,), opens_reasoning=True, is_plain=True),
            )
            for number, each in enumerate(sequences)
        ]
        assert self.sample(rows, others) == self.sample(rows, sequences)

    # Earlier calls

    def test_earlier_calls_never_change_a_choice(self) -> None:
        """Answers that start, grow, have drafts or are aborted leave no trace."""
        chance, sampler = np.random.default_rng(14), self.make()
        living: list[Sequence] = []
        for _ in range(NUM_STEPS):
            if chance.random() < 0.3 or not living:
                living += [_anew(each) for each in mixed_sequences(int(chance.integers(1, 6)))]
            rows = [row for each in living for row in _with_drafts(each, chance)]
            logits = flat_rows(len(rows))
            if chance.random() < 0.3:
                sampler.prepare(rows)  # and the engine fails
            assert self.pick(sampler, logits, rows) == self._fresh(logits, rows)
            for each in living:
                each.output_ids.extend(chance.integers(0, VOCAB_SIZE, chance.integers(0, 4)))
            del living[: int(chance.integers(0, 3))]

    def test_a_preempted_sequence_chooses_as_before(self) -> None:
        """A sampler's state is a cache, and not needed, for any parameter and a greedy choice."""
        both = SamplingParams(temperature=1.5, frequency_penalty=0.5, presence_penalty=0.5)
        greedy = [each.replaced({"temperature": 0.0}) for each in FOLLOWED.values()]
        for params in (both, *FOLLOWED.values(), *greedy):
            fields: dict[str, Any] = {"params": params, "eos_ids": frozenset({4})}
            grown, sampler = new_sequence((0, 1), **fields), self.make()
            for _ in range(20 if params is both else 6):
                again = new_sequence((0, 1), output_ids=grown.output_ids, **fields)
                chosen = self.pick(sampler, [ROW], [Row(grown)])[0]
                assert chosen == self._one(ROW, again), params
                grown.output_ids.append(chosen)

    def test_a_sequence_stays_as_it_is(self) -> None:
        """Except for the sampler's own state in ``kept``."""
        rows, sequences = flat_rows(NUM_ROWS), mixed_sequences(NUM_ROWS)
        before = [_values(each) for each in sequences]
        ahead = [Row(each, (1, 2)) for each in sequences]
        self.pick(self.make(), rows, ahead)
        assert [_values(each) for each in sequences] == before

    # Tokens that are ahead

    @examples
    @given(
        row=logit_rows,
        params=some_params,
        output_ids=few_tokens,
        ahead=few_tokens,
        seed=st.integers(-(2**63), 2**63 - 1),
    )
    def test_drafts_count_as_if_they_were_in_the_answer(
        self,
        row: list[float],
        params: SamplingParams,
        output_ids: list[int],
        ahead: list[int],
        seed: int,
    ) -> None:
        """Noise, penalties and minimum length are those of the position, for every draft."""
        fields: dict[str, Any] = {"params": params, "seed": seed, "banned_ids": (3,)}
        fields["eos_ids"] = frozenset({0})
        drafting = new_sequence((2,), output_ids=output_ids, **fields)
        rows = [Row(drafting, tuple(ahead[:num])) for num in range(len(ahead) + 1)]
        logits = [row[num:] + row[:num] for num in range(len(rows))]
        assert self.pick(self.make(), logits, rows) == self._fresh(logits, rows)

    def test_rejected_drafts_leave_no_trace(self) -> None:
        """After rejected drafts the choice is as if they had never been there."""
        chance, sampler, logits = np.random.default_rng(15), self.make(), flat_rows(1)
        for sequence in mixed_sequences(NUM_ROWS):
            expected = self._one(logits[0], _anew(sequence))
            for num_drafts in (2, 1, 5):
                drafts = tuple(chance.integers(0, VOCAB_SIZE, num_drafts).tolist())
                self.pick(sampler, logits, [Row(sequence, drafts)])
            assert self.pick(sampler, logits, [Row(sequence)]) == [expected]

    def test_rejected_drafts_leave_no_trace_of_any_parameter(self) -> None:
        """After drafts of any length, for each parameter alone, drawn and greedy.

        The answer grows past ``min_tokens`` and the windows of penalties, and so do the drafts.
        """
        chance, sampler = np.random.default_rng(18), self.make()
        drawn = [SamplingParams(temperature=1.0), *FOLLOWED.values(), *BRIEF]
        for params in (*drawn, *(each.replaced({"temperature": 0.0}) for each in drawn)):
            fields: dict[str, Any] = {"params": params, "banned_ids": (3,)}
            grown = new_sequence((0, 1), eos_ids=frozenset({0}), **fields)
            for num_drafts in (5, 1, 8, 0, 2, 3):
                row = chance.permutation(ROW).tolist() if num_drafts % 2 == 0 else ROW
                expected = self._one(row, _anew(grown))
                drafts = tuple(chance.integers(0, len(ROW), num_drafts).tolist())
                rows = [Row(grown, drafts[:num]) for num in range(num_drafts + 1)]
                self.pick(sampler, [row] * len(rows), rows)
                chosen = self.pick(sampler, [row], [Row(grown)])[0]
                assert chosen == expected, f"{num_drafts} rejected drafts left a trace: {params}"
                grown.output_ids.append(chosen)

    # Helpers

    def _one(self, row: Seq[float], sequence: Sequence) -> int:
        return self.sample([row], [_anew(sequence)])[0]

    def _fresh(self, logits: Seq[Seq[float]], rows: Seq[Row]) -> list[int]:
        """Return the choices for answers that contain the drafts, each of a new sampler."""
        return [
            self._one(own, _anew(row.sequence, row.ahead))
            for own, row in zip(logits, rows, strict=True)
        ]


def mixed_again(sequences: Seq[Sequence]) -> list[Sequence]:
    """Return equal new sequences, in the same order."""
    return [_anew(sequence) for sequence in sequences]


def _anew(sequence: Sequence, ahead: Seq[int] = ()) -> Sequence:
    """Return an equal new sequence."""
    output_ids = [*sequence.output_ids, *ahead]
    return dataclasses.replace(sequence, output_ids=output_ids)


def _with_drafts(sequence: Sequence, chance: np.random.Generator) -> list[Row]:
    """Return the rows of a sequence: one, and one more for each draft."""
    num_drafts = int(chance.choice([0, 0, 1, 3]))
    drafts = tuple(chance.integers(0, VOCAB_SIZE, num_drafts).tolist())
    return [Row(sequence, drafts[:num]) for num in range(num_drafts + 1)]


def _values(sequence: Sequence) -> dict[str, Any]:
    """Return a sequence's values, as copies where they are mutable."""
    fields = {field.name for field in dataclasses.fields(sequence)} - {"kept"}
    values = {name: getattr(sequence, name) for name in fields}
    return values | {"output_ids": list(sequence.output_ids), "features": dict(sequence.features)}
