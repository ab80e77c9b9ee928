"""Runners pass their contract, and a model works with any of them."""

import asyncio

import numpy as np
import pytest

import vlmkit
from mock_model import picture, script, wait_until
from replicas import Replicas
from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import Runner
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import RunnerContract

CRASH = script(text="abc", crash_at_token=1)


def mock_pipeline() -> vlmkit.Pipeline:
    return vlmkit.Pipeline(
        tokenizer=MockTokenizer(), engine=MockEngine(), media_encoder=MockVisionEncoder()
    )


def crash(runner: Runner) -> None:
    with pytest.raises(EngineError):
        vlmkit.Model(runner).generate(CRASH)


class TestPipeline(RunnerContract):
    def make(self) -> Runner:
        return mock_pipeline()

    def fail(self, runner: Runner) -> None:
        crash(runner)


class TestReplicas(RunnerContract):
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
    with pytest.raises(EngineError, match="no replica is left"):
        replicas.generate("hello")
