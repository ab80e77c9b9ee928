"""Overlapped steps: a step that starts before the last one is read changes no answer."""

import json
import random
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from mock_model import Hesitant, hesitant, picture, wait_until
from vlmkit.errors import EngineError
from vlmkit.interfaces.step import StepOutput
from vlmkit.running.engine_loop import step_overlap
from vlmkit.running.engine_loop.ngram import NgramProposer
from vlmkit.running.engine_loop.step_executor import StepExecutor
from vlmkit.running.engine_loop.step_overlap import StepOverlap
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.types.constraint import JsonSchema, OneOf, Regex
from vlmkit.types.message import Message
from vlmkit_guidance.compiler import GuidanceCompiler
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing import new_sequence

SMALL = {"capacity_tokens": 320, "max_sequences": 4, "max_sequence_tokens": 256}
"""Room for a few sequences, so that some are preempted."""


def load(*, proposer=None, engine=Hesitant, overlaps=True, **options):
    options = {"overlaps_steps": overlaps, **options}
    return hesitant(proposer, engine, constraint=GuidanceCompiler, **options)


def counters(model):
    return model.stats().counters


def random_request(model, chance, number):
    """Return a request that uses some of what changes how steps run."""
    asked = model.request(
        f"what is {number} {number} {number}?",
        images=[picture(color=f"#0000{number:02x}")] * chance.choice([0, 0, 1]),
        seed=chance.randrange(2**31),
        n=chance.choice([1, 1, 2]),
        temperature=chance.choice([0.0, 0.8, 1.5]),
        max_tokens=chance.randrange(1, 24),
        **chance.choice([{}, {"logprobs": True, "top_logprobs": 2}]),
        **chance.choice([{}, {"frequency_penalty": 0.5}]),
        **chance.choice([{}, {"stop": ["b", " i"]}]),
        ignore_eos=(is_free := chance.random() < 0.5),
    )
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    rules = [JsonSchema(json.dumps(schema)), OneOf(("yes", "no")), Regex("[a-c]{1,4}")]
    if not is_free and chance.random() < 0.6:
        asked = replace(asked, constraint=chance.choice(rules))
    return replace(asked, priority=chance.choice([0, 0, 1]))


def tokens_of(done):
    """Return what a client sees of each choice."""
    return [(choice.text, choice.samples, choice.finish_reason) for choice in done.choices]


def begins(shorter, longer):
    """Return whether the samples of each choice are the first ones of another answer."""
    pairs = zip(shorter, longer, strict=True)
    return all(long[1][: len(short[1])] == short[1] for short, long in pairs)


@pytest.mark.parametrize("num_loads", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_answers_of_random_loads_equal_those_of_steps_one_after_another(num_loads):
    chance = random.Random(31)
    with load(overlaps=False) as plain:
        requests = [random_request(plain, chance, number) for number in range(120)]
        expected = [tokens_of(plain.submit(request).result()) for request in requests]
    with load(proposer=NgramProposer(), **SMALL) as drafting, load(**SMALL) as model:
        for number in range(num_loads):
            check_load(drafting if number % 3 == 0 else model, chance, requests, expected)
        for own in (drafting, model):
            wait_until(lambda own=own: not own.stats().num_running)
            assert counters(own)["num_preemptions"] > 0
            assert counters(own)["num_overlapped_steps"] > num_loads
            assert counters(own)["num_failed"] == 0
        assert counters(drafting)["num_drafts_accepted"] > 0


def check_load(model, chance, requests, expected):
    """Run some requests at once, abort some of them, and compare their answers."""
    chosen = [chance.randrange(len(requests)) for _ in range(chance.randrange(1, 7))]
    streams = [model.submit(requests[place]) for place in chosen]
    aborted = [stream for stream in streams if chance.random() < 0.2]
    for stream in aborted:
        time.sleep(chance.random() * 0.004)
        stream.abort()
    for place, stream in zip(chosen, streams, strict=True):
        found = tokens_of(stream.result())
        if stream in aborted:
            assert begins(found, expected[place])
        else:
            assert found == expected[place]


class Recording(Hesitant):
    """Notes how steps are started; the numbers of ``failing`` steps ahead fail."""

    def __init__(self, settings, failing=frozenset()):
        super().__init__(settings)
        self.calls = []
        self._failing = failing

    def forward(self, items):
        self.calls.append("forward")
        return super().forward(items)

    def forward_next(self, items, token_ids):
        self.calls.append("ahead")
        output = super().forward_next(items, token_ids)
        if self.calls.count("ahead") in self._failing:
            raise RuntimeError("the device has no memory for two steps")
        return output


class FailsOnce:
    """A sampler that fails when it chooses one token, and notes how often that happened."""

    def __init__(self, at):
        self.num_failures = 0
        self._at, self._sampler = at, ArraySampler()

    def prepare(self, rows):
        pick = self._sampler.prepare(rows)

        def choose(logits):
            if not self.num_failures and any(row.num_output == self._at for row in rows):
                self.num_failures += 1
                raise RuntimeError("the sampler failed")
            return pick(logits)

        return choose


@contextmanager
def recorded(failing=frozenset(), **options):
    """Yield a model and the calls of its engine."""
    engines = []

    def make(settings):
        engines.append(Recording(settings, failing))
        return engines[0]

    with load(engine=make, **options) as model:
        yield model, engines[0].calls


def asked(model, num_tokens=12, **options):
    options = {"temperature": 0.8, "seed": 3, "ignore_eos": True, **options}
    return model.submit(model.request("hello", max_tokens=num_tokens, **options))


def expected_answer(num_tokens=12):
    with load(overlaps=False) as model:
        return tokens_of(asked(model, num_tokens).result())


def test_each_token_but_the_first_is_computed_ahead():
    with recorded() as (model, calls):
        assert tokens_of(asked(model).result()) == expected_answer()
        assert calls == ["forward"] + ["ahead"] * 11
        assert counters(model)["num_overlapped_steps"] == 11
        assert counters(model)["num_steps"] == 12


def test_an_engine_that_does_not_claim_it_is_not_asked():
    with recorded(overlaps=False) as (model, calls):
        asked(model).result()
        assert set(calls) == {"forward"}


@pytest.mark.parametrize("failing", [{1}, {3, 6}, {1, 2}, {4, 5, 6}])
def test_a_step_that_cannot_be_started_ahead_is_planned(failing, caplog):
    with recorded(failing) as (model, calls):
        assert tokens_of(asked(model, 20).result()) == expected_answer(20)
        assert calls.count("forward") + calls.count("ahead") - len(failing) == 20
    if failing == {4, 5, 6}:
        assert "steps are not overlapped any more: forward_next fails" in caplog.text
        assert calls.count("ahead") == 6
    else:
        assert not caplog.text


@pytest.mark.parametrize("at", [0, 1, 7, 11])
def test_a_step_whose_tokens_cannot_be_chosen_is_computed_again(at):
    sampler = FailsOnce(at)
    with recorded(sampler=sampler) as (model, _):
        assert tokens_of(asked(model).result()) == expected_answer()
        assert sampler.num_failures == 1
        assert counters(model)["num_overlapped_steps"] > 0


def test_nothing_is_computed_ahead_while_a_sequence_waits():
    with recorded(max_sequences=1) as (model, calls):
        asked(model, 12, n=2).result()
        assert calls == ["forward"] * 13 + ["ahead"] * 11, "the second choice waited for the first"


def test_nothing_is_computed_ahead_of_a_token_with_drafts():
    with recorded(proposer=NgramProposer()) as (model, calls):
        stream = asked(model, 24, logit_bias={65: 100})
        assert [len(choice.samples) for choice in stream.result().choices] == [24]
        assert counters(model)["num_drafts_accepted"] > 8
        assert calls.count("ahead") < 8


def test_an_idle_loop_holds_no_step():
    with recorded() as (model, _):
        stream = asked(model, 4_000)
        stream.abort()
        stream.result()
        wait_until(lambda: not model.stats().num_running)
        loop = model.runner._loop
        wait_until(lambda: not loop._steps.overlap.has_started)
        assert model.runner.stats().num_free_tokens == 2**14


def test_a_sequence_that_did_not_get_its_token_goes_on_without_the_step():
    """A constraint may take back what the sampler chose."""
    engine, scheduler = Hesitant(MockEngineSettings(overlaps_steps=True)), ContinuousScheduler()
    prompt = MockTokenizer().prompt([Message.of("user", "hello")])
    sequence = new_sequence(prompt, plan=engine.read(prompt), max_tokens=9)
    scheduler.add(sequence)
    overlap = StepOverlap(engine, scheduler, StepExecutor(engine, ArraySampler()), lambda: 0)
    items = scheduler.plan(engine).items
    (first,) = overlap.compute(items)
    assert overlap.has_started
    assert overlap.started_items({sequence}) == ()
    assert not overlap.has_started
    assert overlap.compute(items) == [first]


@pytest.mark.parametrize("num_rows", [0, 1, 4])
def test_a_started_step_with_other_rows_than_items_is_not_used(num_rows):
    """Otherwise an answer would get the tokens of another one when a third one ends."""

    class ReturnsOtherRows(Recording):
        def forward_next(self, items, token_ids):
            output = super().forward_next(items, token_ids)
            if self.calls.count("ahead") == 3:
                rows = np.repeat(output.logits[:1], num_rows, axis=0) if num_rows else None
                return StepOutput(rows)
            return output

    with load(overlaps=False) as plain, load(engine=ReturnsOtherRows) as model:
        requests = [
            model.request(
                text, seed=seed, temperature=0.8, ignore_eos=True, max_tokens=4 + 3 * seed
            )
            for seed, text in enumerate(["one", "two", "three"])
        ]
        expected = [tokens_of(plain.submit(request).result()) for request in requests]
        assert [tokens_of(each.result()) for each in map(model.submit, requests)] == expected
        assert counters(model)["num_failed"] == 0


def test_a_token_outside_of_the_vocabulary_never_reaches_the_device():
    """A device would fail for good; the host refuses the token when it reads it."""
    seen = []

    class ChoosesWrongly:
        def prepare(self, rows):
            pick = ArraySampler().prepare(rows)
            wrong = [row.num_output == 3 for row in rows]
            return lambda logits: np.where(wrong, 10**6, pick(logits))

    class NotesTokens(Recording):
        def forward_next(self, items, token_ids):
            seen.extend(token_ids.tolist())
            return super().forward_next(items, token_ids)

    with load(engine=NotesTokens, sampler=ChoosesWrongly()) as model:
        with pytest.raises(EngineError, match="1000000"):
            asked(model).result()
        assert seen
        assert max(seen) < model.facts.limits.vocab_size


def test_a_copy_of_rows_that_fails_costs_no_answer(monkeypatch):
    """Rows are copied when a sequence in the middle ends."""

    def fail(array, rows):
        if len(rows) < array.shape[0]:
            raise MemoryError
        return array

    with load(overlaps=False) as plain, load() as model:
        requests = [
            model.request("hello", seed=seed, temperature=0.8, ignore_eos=True, max_tokens=num)
            for seed, num in enumerate([12, 5, 9])
        ]
        expected = [tokens_of(plain.submit(request).result()) for request in requests]
        monkeypatch.setattr(step_overlap, "_selected", fail)
        assert [tokens_of(each.result()) for each in map(model.submit, requests)] == expected
        assert counters(model)["num_failed"] == 0
