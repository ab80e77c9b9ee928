"""The step executor: the order of its calls of engine and sampler, and their rows."""

import pytest

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing import new_sequence

TEXT = Prompt(tuple(MockTokenizer().encode("a prompt of some words")))


class RecordingParts:
    """Engine and sampler that record the calls of a step."""

    def __init__(self, engine):
        self.calls = []
        self._engine, self._sampler = engine, ArraySampler()

    def forward(self, items):
        self.calls.append("forward")
        return self._engine.forward(items)

    def prepare(self, rows):
        self.calls.append([row.ahead for row in rows])
        pick = self._sampler.prepare(rows)

        def record_sampling(logits):
            self.calls.append("pick")
            return pick(logits)

        return record_sampling


@pytest.fixture
def engine():
    return MockEngine()


@pytest.fixture
def parts(engine):
    return RecordingParts(engine)


def admitted(engine, scope=b"", **fields):
    sequence = new_sequence(TEXT, plan=engine.read(TEXT), scope=scope, **fields)
    assert engine.admit(sequence) is not None
    return sequence


def test_rows_are_prepared_before_the_engine_runs_and_sampled_after(parts, engine):
    sequences = [admitted(engine, b"%d" % i) for i in range(3)]
    items = [WorkItem(sequence, 0, len(TEXT), num_rows=1) for sequence in sequences]
    outcomes = StepExecutor(parts, parts).compute(items)
    assert [len(outcome.samples) for outcome in outcomes] == [1, 1, 1]
    assert parts.calls == [[(), (), ()], "forward", "pick"]


def test_a_step_without_rows_samples_nothing(parts, engine):
    item = WorkItem(admitted(engine), 0, 4)
    assert StepExecutor(parts, parts).compute([item]) == [Outcome(item)]
    assert parts.calls == ["forward"]


def test_chunks_between_items_with_rows_get_no_token(parts, engine):
    one, other = admitted(engine, b"one"), admitted(engine, b"other")
    items = [WorkItem(one, 0, 4), WorkItem(other, 0, len(TEXT), num_rows=1)]
    first, second = StepExecutor(parts, parts).compute(items)
    assert (len(first.samples), len(second.samples)) == (0, 1)


def test_drafts_are_accepted_as_far_as_they_equal_the_answer_without_drafts(parts, engine):
    params = SamplingParams(temperature=1.5, frequency_penalty=1.0, logprobs=True)
    executor = StepExecutor(parts, parts)
    drafting, holding = (admitted(engine, scope, params=params) for scope in (b"one", b"other"))
    for sequence in (drafting, holding):
        executor.compute([WorkItem(sequence, 0, len(TEXT), num_rows=1)])
        sequence.output_ids.append(69)
        assert engine.reserve(sequence, len(TEXT) + 4)
    expected = []
    for index in range(3):
        item = WorkItem(holding, len(TEXT) + index, 1, num_rows=1)
        expected += executor.compute([item])[0].samples
        holding.output_ids.append(expected[-1].token_id)
    first, second, third = holding.output_ids[1:]
    parts.calls.clear()
    drafts = (first, second, third + 1)
    item = WorkItem(drafting, len(TEXT), 4, num_rows=4, drafts=drafts)
    assert executor.compute([item])[0].samples == tuple(expected)
    assert parts.calls == [[drafts[:num] for num in range(4)], "forward", "pick"]
