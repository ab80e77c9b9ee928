"""What every sampler must do: take rows of logits, and return a token for each.

Further modules hold what a choice depends on, the distribution of draws, and the parameters.
"""

import gc
import math
import weakref

import numpy as np
import pytest

from vlmkit.interfaces.sampler import Row
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.sampler_batch_contract import (
    VOCAB_SIZE,
    SamplerBatchContract,
    flat_rows,
    mixed_again,
    mixed_sequences,
)
from vlmkit_testing.contracts.sampler_chance_contract import SamplerChanceContract
from vlmkit_testing.contracts.sampler_params_contract import SamplerParamsContract
from vlmkit_testing.contracts.sampler_reference_contract import SamplerReferenceContract
from vlmkit_testing.contracts.sampler_subject import FOLLOWED, ROW
from vlmkit_testing.contracts.sequences import WatchedSequence, new_sequence

EVERYTHING = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    top_k=5,
    min_p=0.01,
    repetition_penalty=1.3,
    presence_penalty=1.0,
    frequency_penalty=0.5,
    logit_bias={1: 5.0},
)


NUM_MIXED = 50  # rows, some of which have no finite value


class SamplerContract(
    SamplerBatchContract, SamplerChanceContract, SamplerParamsContract, SamplerReferenceContract
):
    """Inherit it, override :meth:`make`, and run pytest.

    A sampler that does not support every parameter says so: its attribute ``ignores`` names fields
    of :class:`vlmkit.types.sampling.SamplingParams`. One with filters of its own has
    ``is_exact = False``.
    """

    # Shapes

    def test_there_is_one_token_for_each_row(self) -> None:
        """Ids are integers on the device of the logits."""
        rows = [[0.0, 9.0, 1.0], [9.0, 0.0, 1.0], [0.0, 1.0, 9.0]]
        logits = self.array(rows)
        picked = self.make().prepare([Row(new_sequence()) for _ in rows])(logits)
        assert picked.shape == (3,)
        assert "int" in str(getattr(picked, "dtype", None)), "token ids are an array of integers"
        assert picked.__dlpack_device__() == logits.__dlpack_device__()
        assert to_numpy(picked).tolist() == [1, 0, 2]

    # What becomes of the logits

    @pytest.mark.parametrize(
        "params",
        [SamplingParams(), EVERYTHING, *FOLLOWED.values()],
        ids=["greedy", "all", *FOLLOWED],
    )
    def test_the_logits_stay_as_they_are(self, params: SamplingParams) -> None:
        """The array belongs to the engine."""
        logits = self.array([ROW, ROW])
        before = to_numpy(logits)
        sequences = [
            new_sequence(params=params, output_ids=[0, 0], banned_ids=(1,)) for _ in range(2)
        ]
        self.make().prepare([Row(sequences[0]), Row(sequences[1], (2, 2))])(logits)
        np.testing.assert_array_equal(to_numpy(logits), before)

    def test_a_small_difference_decides(self) -> None:
        """Logits are compared as float32."""
        for row in ([20.0, 20.001, 19.0], [-300.01, -300.0, -301.0]):
            assert self.choose(row) == 1

    def test_logits_may_be_a_part_of_something_larger(self) -> None:
        """An engine may return a read-only view without the padding of its vocabulary."""
        rows, sequences = flat_rows(64), mixed_sequences(64)
        expected = self.sample(rows, sequences)
        edge = [99.0] * (VOCAB_SIZE + 7)
        larger = [edge, *([99.0] * 3 + row + [99.0] * 4 for row in rows), edge]
        logits = self.array(larger)[1:-1, 3:-4]  # type: ignore[index]
        if isinstance(logits, np.ndarray):
            logits.flags.writeable = False
        again = mixed_sequences(64)
        picked = self.make().prepare([Row(sequence) for sequence in again])(logits)
        assert to_numpy(picked).tolist() == expected

    # Rows with few finite logits, or none

    def test_logits_of_minus_infinity_are_never_chosen(self) -> None:
        """An engine may mask columns itself."""
        row = [-math.inf, 0.0, -math.inf, 0.0]
        params = SamplingParams(temperature=2.0)
        chosen = {self.choose(row, params, seed=seed) for seed in range(50)}
        assert chosen <= {1, 3}
        assert chosen == {1, 3} or not self.is_exact or "temperature" in self.ignores

    @pytest.mark.parametrize(
        "params",
        [SamplingParams(), EVERYTHING, *FOLLOWED.values()],
        ids=["defaults", "everything", *FOLLOWED],
    )
    def test_the_tokens_that_a_constraint_allows_are_chosen(self, params: SamplingParams) -> None:
        """All other logits are minus infinity; the one token left may be very unlikely."""
        for left in range(len(ROW)):
            row = [-50.0 if token_id == left else -math.inf for token_id in range(len(ROW))]
            fields = {"output_ids": [left, 4, left], "prompt": (left,)}
            assert self.choose(row, params, **fields) == left

    @pytest.mark.parametrize("value", [math.nan, -math.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_without_a_finite_value_harms_no_other(
        self, value: float, temperature: float
    ) -> None:
        """It gets any token of the vocabulary, since its request fails."""
        params = SamplingParams(temperature=temperature, top_p=0.9)
        sequences = [new_sequence(params=params, seed=seed) for seed in range(3)]
        good, bad = ROW[::-1], [value] * len(ROW)
        picked = self.sample([good, bad, good], sequences)
        expected = self.sample([good, good], [sequences[0], sequences[2]])
        assert [picked[0], picked[2]] == expected
        assert 0 <= picked[1] < len(ROW)

    @pytest.mark.parametrize("value", [math.nan, -math.inf])
    def test_rows_without_a_finite_value_harm_no_parameter_of_others(self, value: float) -> None:
        """Requests of any parameters may fail beside others, first, last or several at once."""
        rows, sequences = flat_rows(NUM_MIXED), mixed_sequences(NUM_MIXED)
        params = [*FOLLOWED.values()]
        for number, sequence in enumerate(sequences[::2]):
            sequence.params = params[number % len(params)]
        bad = set(range(0, NUM_MIXED, 3)) | {NUM_MIXED - 1}
        good = [number for number in range(NUM_MIXED) if number not in bad]
        expected = self.sample([rows[i] for i in good], [sequences[i] for i in good])
        for number in bad:
            rows[number] = [value] * VOCAB_SIZE
        found = self.sample(rows, mixed_again(sequences))
        assert [found[number] for number in good] == expected
        assert all(0 <= token_id < VOCAB_SIZE for token_id in found)

    # What is kept

    def test_ended_sequences_are_released(self) -> None:
        """A sampler is not told of ends, so it keeps its state in the sequence."""
        sampler, ended = self.make(), []
        for number in range(3):
            sequences = [WatchedSequence.of(each) for each in mixed_sequences(8)]
            ended += [weakref.ref(each) for each in sequences] if number < 2 else []
            self.pick(sampler, flat_rows(16), [Row(s, a) for s in sequences for a in ((), (1,))])
            del sequences
        gc.collect()
        assert not any(ref() for ref in ended), "a sampler holds sequences of earlier steps"
