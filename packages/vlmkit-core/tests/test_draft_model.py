"""Batch proposals, and a proposer with a second checkpoint: answers stay the same."""

from pathlib import Path

import pytest
from draft_model_plugin import DraftModelProposer
from hypothesis import given, settings, strategies as st

import vlmkit
from mock_model import answers, hesitant, script
from vlmkit.errors import CheckpointError, ConfigError, PluginError
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.engine_loop.ngram import NgramProposer
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_testing import ProposerContract

PLUGIN = Path(__file__).with_name("draft_model_plugin.py")


def make_request(number, **params):
    scripted = script(text=f"{number} and on and on, {number} times")
    return Request(messages=[Message.of("user", scripted)], params=SamplingParams(**params))


REQUESTS = st.builds(
    make_request,
    st.integers(0, 5),
    max_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 1.0]),
    stop=st.sampled_from([(), (" ",)]),
    seed=st.integers(0, 5),
    n=st.integers(1, 3),
)


class Batches(NgramProposer):
    """Proposes in batches; records their sizes and the sequences that they hold."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def propose(self, sequence, num_tokens):
        raise AssertionError("propose_all takes its place")

    def propose_all(self, sequences, num_tokens):
        assert len(set(sequences)) == len(sequences) == len(num_tokens)
        assert all(num > 0 for num in num_tokens)
        self.sizes.append(len(sequences))
        return [
            super(Batches, self).propose(*pair) for pair in zip(sequences, num_tokens, strict=True)
        ]


@given(st.lists(REQUESTS, min_size=1, max_size=5), st.booleans())
@settings(max_examples=40)
def test_batch_proposals_change_no_answer_and_are_those_of_single_ones(requests, is_tight):
    limits = {"capacity_tokens": 192, "max_sequence_tokens": 192} if is_tight else {}
    counted = []
    found = []
    for proposer in (None, NgramProposer(), Batches()):
        with hesitant(proposer, **limits) as model:
            found.append(answers(model, requests))
            counted.append(model.stats().counters)
    assert found[0] == found[1] == found[2]
    assert counted[2]["num_failed_proposers"] == 0
    if len(requests) == 1 and requests[0].params.n == 1:  # others run beside each other by chance
        assert counted[1] == counted[2]


def test_all_answers_of_a_step_are_drafted_in_one_call():
    batches = Batches()
    with hesitant(batches, engine=MockEngine) as model:
        answers(model, [make_request(1, max_tokens=20, n=4, ignore_eos=True, seed=1)])
        num_steps = model.stats().counters["num_steps"]
    assert max(batches.sizes) == 4
    assert len(batches.sizes) <= num_steps


@pytest.mark.parametrize(
    "result",
    [
        lambda num: 1 / 0,
        lambda num: [[]] * (num - 1),
        lambda num: [["x"]] * num,
        lambda num: [[1]] * (num + 1),
        lambda num: None,
    ],
)
def test_a_batch_proposer_that_fails_is_disabled_by_name_and_answers_go_on(result, caplog):
    class Fails(Batches):
        def propose_all(self, sequences, num_tokens):
            return result(len(sequences))

    requests = [make_request(i, max_tokens=20) for i in range(3)]
    with hesitant() as model:
        expected = answers(model, requests)
    with hesitant(Fails()) as model:
        assert answers(model, requests) == expected
        assert model.runner.is_ready
        assert model.stats().counters["num_failed_proposers"] == 1
    assert caplog.text.count("the proposer failed") == 1


# A draft model.


class TestDraftModelProposer(ProposerContract):
    def make(self):
        return DraftModelProposer(MockEngine(MockEngineSettings(capacity_tokens=2**14)), 4)


def draft_model(*, observers=None, **proposer):
    files = {"files": [str(PLUGIN)]}
    proposer = {"use": "draft-model", **proposer}
    return vlmkit.load("mock", plugins=files, proposer=proposer, observers=observers or {})


def test_drafts_of_a_second_checkpoint_save_steps_and_change_no_answer():
    text = "a long answer that both models agree about"
    requests = [script(text=text, tokens=60), script(text=text[::-1], tokens=50)]
    with vlmkit.load("mock") as model:
        expected = [model.generate(request).text for request in requests]
        num_steps = model.stats().counters["num_steps"]
    with draft_model() as model:
        assert [model.generate(request).text for request in requests] == expected
        counters = model.stats().counters
        draft = model.runner._loop._steps._drafting._proposer._engine
        assert draft is not model.runner._engine
        assert draft.num_free_tokens == draft.limits.capacity_tokens
    assert counters["num_drafts_accepted"] == counters["num_tokens_drafted"] > 60
    assert counters["num_steps"] < num_steps / 3
    assert draft._is_closed


def test_the_engine_of_a_second_checkpoint_has_its_own_settings():
    limits = {"capacity_tokens": 64, "max_sequence_tokens": 64}
    with draft_model(engine=limits) as model:
        draft = model.runner._loop._steps._drafting._proposer._engine
        assert draft.limits.capacity_tokens == 64
        assert model.facts.limits.capacity_tokens > 64
        assert len(model.generate(script(text="abc", tokens=99)).text) == 99
    with pytest.raises(ConfigError, match="has no setting 'nonsense'"):
        draft_model(engine={"nonsense": 1})
    with pytest.raises(PluginError):
        draft_model(engine={"use": "unknown"})
    with pytest.raises(CheckpointError):
        draft_model(model="no-such-model")


def test_a_second_model_is_closed_when_the_pipeline_cannot_be_built(monkeypatch, tmp_path):
    closed = []
    monkeypatch.setattr(MockEngine, "close", lambda self: closed.append(id(self)))
    log = {"file": str(tmp_path / "nowhere" / "log")}
    with pytest.raises(ConfigError, match="cannot be written"):
        draft_model(observers={"use": ["log"], "log": log})
    assert len(set(closed)) == 2


def test_a_second_model_needs_a_pipeline():
    with pytest.raises(ConfigError, match="which only a pipeline can build"):
        BuildContext().build_other("mock")
