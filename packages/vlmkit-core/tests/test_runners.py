"""Runners pass their contract, and a model works with any of them."""

import asyncio
from typing import Any

import numpy as np
import pytest

import vlmkit
from mock_model import picture, script, wait_until
from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import Runner
from vlmkit.running.replicas import Replicas
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import RunnerContract

CRASH = script(text="abc", crash_at_token=1)


def mock_pipeline(**settings: Any) -> vlmkit.Pipeline:
    few = ContinuousScheduler(SchedulerSettings(max_running=6, max_waiting=6))
    return vlmkit.Pipeline(
        tokenizer=MockTokenizer(),
        engine=MockEngine(MockEngineSettings(**settings)),
        media_encoder=MockVisionEncoder(),
        scheduler=few,
    )


def crash(runner: Runner) -> None:
    with pytest.raises(EngineError):
        vlmkit.Model(runner).generate(CRASH)


class TestPipeline(RunnerContract):
    too_many = 14

    def make(self) -> Runner:
        return mock_pipeline()

    def fail(self, runner: Runner) -> None:
        crash(runner)


class TestReplicas(RunnerContract):
    too_many = 28

    def make(self) -> Runner:
        return Replicas([mock_pipeline(), mock_pipeline()])

    def fail(self, runner: Runner) -> None:
        assert isinstance(runner, Replicas)
        for each in runner.runners:
            crash(each)


@pytest.fixture
def replicas():
    with vlmkit.Model(Replicas([mock_pipeline(), mock_pipeline()])) as model:
        yield model


def test_a_model_behaves_the_same_with_several_pipelines(replicas):
    texts, shown = ["A red house.", "Trains run late."], [picture()]

    async def call_everything(model):
        return (
            (await model.agenerate("what?", images=shown)).text,
            [text async for text in model.astream(script(text="abc"))],
            await model.aembed(texts),
            [score.logprob for score in await model.ascore("Is it red?", ["yes", "no"])],
        )

    with vlmkit.load("mock") as alone:
        for model in (replicas, alone):
            *answers, vectors, scores = asyncio.run(call_everything(model))
            assert answers == [model.generate("what?", images=shown).text, ["a", "b", "c"]]
            assert list(model.stream(script(text="abc"))) == ["a", "b", "c"]
            np.testing.assert_array_equal(vectors, model.embed(texts))
            assert scores == [s.logprob for s in model.score("Is it red?", ["yes", "no"])]
        assert replicas.generate("what?", images=shown).text == answers[0]


def test_requests_go_to_the_replica_with_the_least_work(replicas):
    one, other = replicas.runner.runners
    first = replicas.submit(replicas.request(script(text="x", tokens=4000, latency_s=0.01)))
    wait_until(lambda: one.stats().num_running == 1)
    assert replicas.generate("hello").text == "hello"
    assert other.stats().counters["num_finished"] == 1
    first.abort()


def test_a_failed_replica_gets_no_requests(replicas):
    failures = []
    replicas.runner.on_failure(failures.append)
    crash(replicas.runner)
    assert [replicas.generate("hello").text for _ in range(3)] == ["hello"] * 3
    assert not failures
    crash(replicas.runner)
    wait_until(lambda: failures)
    with pytest.raises(EngineError, match="all replicas of model"):
        replicas.generate("hello")


class FailsBeforeItAccepts(vlmkit.Pipeline):
    """A pipeline whose engine fails while a request is on its way to it."""

    is_failing = False

    def submit(self, request, admit=None):
        if not self.is_failing:
            self.is_failing = True
            crash(self)
        return super().submit(request, admit)

    async def asubmit(self, request, admit=None):
        if not self.is_failing:
            self.is_failing = True
            await asyncio.to_thread(crash, self)
        return await super().asubmit(request, admit)


def test_a_request_that_a_replica_did_not_accept_goes_to_another():
    for ask in (
        lambda model: model.generate("hello"),
        lambda model: asyncio.run(model.agenerate("hello")),
    ):
        one = FailsBeforeItAccepts(
            tokenizer=MockTokenizer(), engine=MockEngine(), media_encoder=MockVisionEncoder()
        )
        with vlmkit.Model(Replicas([one, mock_pipeline()])) as model:
            assert ask(model).text == "hello"
            assert not one.is_ready


def test_statistics_are_sums_over_the_replicas(replicas):
    held = [replicas.submit(replicas.request(script(text="x", tokens=4000))) for _ in range(3)]
    wait_until(lambda: replicas.stats().num_running == 3)
    stats = [runner.stats() for runner in replicas.runner.runners]
    assert sorted(each.num_running for each in stats) == [1, 2]
    assert replicas.stats().num_free_tokens == sum(each.num_free_tokens for each in stats)
    for stream in held:
        stream.abort()
    wait_until(lambda: replicas.stats().counters["num_aborted"] == 3)


def test_replicas_take_as_many_requests_together_and_none_longer_than_the_shortest_takes():
    each = [mock_pipeline(max_sequence_tokens=256), mock_pipeline(max_sequence_tokens=512)]
    with vlmkit.Model(Replicas(each)) as model:
        limits = [runner.facts.limits for runner in each]
        assert model.facts.limits.max_sequence_tokens == 256
        assert model.facts.limits.max_sequences == sum(one.max_sequences for one in limits)
        assert model.facts.limits.capacity_tokens == sum(one.capacity_tokens for one in limits)


def test_runners_of_different_models_are_no_replicas():
    problem = "differ in more than the size of their caches"
    with (
        mock_pipeline() as one,
        mock_pipeline(max_draft_tokens=1) as other,
        pytest.raises(EngineError, match=problem),
    ):
        Replicas([one, other])


def test_all_replicas_are_closed_if_the_first_cannot_be():
    class Stuck(vlmkit.Pipeline):
        def close(self):
            super().close()
            raise EngineError("it hangs")

    parts = {"tokenizer": MockTokenizer(), "engine": MockEngine()}
    each = [Stuck(**parts), mock_pipeline()]
    each[1].facts = each[0].facts
    with pytest.raises(EngineError, match="it hangs"):
        Replicas(each).close()
    assert not each[1].is_ready
