"""Models with recurrent layers: tokens of transformers, repeated steps, preemption and limits."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity import hybrid, runner
from vlmkit.errors import ConfigError
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing import EngineContract
from vlmkit_testing.contracts.engine_host import EngineHost

pytestmark = pytest.mark.torch

Build = Callable[..., Any]
Made = Callable[..., Path]
FAMILIES = ("jamba", "lfm2", "mamba", "mamba2")
KINDS = {"F32": 1e-3, "F16": 4e-2, "Q8_0": 1.0}
"""The largest difference of a logit from transformers; see ``test_engine``."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(
    family: str, kind: str, made: Made, build: Build
) -> None:
    """The smaller cache sends sequences away and takes them back."""
    prompts = hybrid.prompts()
    expected = runner.continued(made(family, kind) / "plain" / family, prompts)
    for cache_tokens in (1024, 256):
        engine = build(family, kind, cache_tokens=cache_tokens)
        found = runner.run(engine, None, prompts)
        engine.close()
        outcome = runner.compare(found, expected)
        print(family, kind, cache_tokens, outcome)
        assert outcome.difference < KINDS[kind]
        if kind == "F32":
            assert outcome.is_parity, outcome


def test_a_sequence_with_the_id_of_another_begins_anew(build: Build) -> None:
    engine = build("mamba", "F32")
    host = EngineHost(engine)
    first, second = hybrid.prompts()[:2]
    expected = host.last_logits(second)
    host.last_logits(first)
    np.testing.assert_array_equal(host.last_logits(second), expected)
    engine.close()


def test_as_many_sequences_run_as_can_be_set(build: Build) -> None:
    """Each has two ids of the library, which has 256."""
    engine = build("mamba", "F32", max_sequences=128, cache_tokens=128 * 16)
    host = EngineHost(engine)
    sequences = [host.sequence(Prompt((3 + number, 7, 9))) for number in range(128)]
    assert all(host.admit(sequence) == 0 for sequence in sequences)
    for sequence in sequences:
        host.prefill(sequence)
    rows = host.step([host.next_item(sequence, 11) for sequence in sequences])
    for sequence in sequences:
        engine.release(sequence)
    for number in (0, 63, 127):
        expected = host.last_logits(Prompt((3 + number, 7, 9, 11)))
        np.testing.assert_allclose(rows[number], expected, atol=1e-4, rtol=0)
    engine.close()


def test_states_that_do_not_fit_are_refused_before_the_library_is_opened(build: Build) -> None:
    with pytest.raises(ConfigError, match="the recurrent states of 12 sequences take") as caught:
        build("mamba", cache_tokens=None, cache_gib=1e-4, library="absent")
    assert caught.value.hint == "lower engine.max_sequences, or raise engine.cache_gib"


class RandomSteps:
    """Sequences in random steps, which may be repeated; keeps each row with its tokens."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.host, self.dice = engine, EngineHost(engine), random.Random(seed)
        self.active: list[Any] = []
        self.rows: list[tuple[tuple[int, ...], Any]] = []
        self.num_preempted = self.num_repeated = 0

    def tokens(self, num: int) -> tuple[int, ...]:
        return tuple(self.dice.randrange(3, 300) for _ in range(num))

    def begin(self) -> None:
        self.admit(self.host.sequence(Prompt(self.tokens(self.dice.randrange(1, 60)))))

    def admit(self, sequence: Any) -> None:
        if self.host.admit(sequence) is not None:
            self.active.append(sequence)
            row = self.host.prefill(sequence, chunk_tokens=self.dice.randrange(1, 40))
            self.rows.append((tuple(sequence.tokens(0, len(sequence))), row))

    def end(self, sequence: Any) -> None:
        self.engine.release(sequence)
        self.active.remove(sequence)

    def preempt(self) -> None:
        sequence = self.dice.choice(self.active)
        self.end(sequence)
        self.num_preempted += 1
        self.admit(sequence)

    def decode(self) -> None:
        """Compute one token of some sequences, and sometimes all or a few of them again."""
        some = self.dice.sample(self.active, self.dice.randrange(1, len(self.active) + 1))
        items = []
        for sequence in some:
            if len(sequence) < 150 and self.engine.reserve(sequence, len(sequence) + 1):
                items.append(self.host.next_item(sequence, *self.tokens(1)))
            else:
                self.end(sequence)
        rows = self.host.step(items)
        if items and self.dice.random() < 0.3:
            self.num_repeated += 1
            again = self.dice.sample(items, self.dice.randrange(1, len(items) + 1))
            for item, row in zip(again, self.host.step(again), strict=True):
                np.testing.assert_allclose(row, rows[items.index(item)], atol=1e-3, rtol=0)
        for item, row in zip(items, rows, strict=True):
            tokens = item.sequence.tokens(0, len(item.sequence))
            self.rows.append((tuple(tokens), row))

    def step(self) -> None:
        action = self.dice.random()
        if action < 0.3 or not self.active:
            self.begin()
        elif action < 0.4:
            self.end(self.dice.choice(self.active))
        elif action < 0.5:
            self.preempt()
        else:
            self.decode()

    def states_are_those_of_the_library(self) -> None:
        cells, context = self.engine._cells, self.engine._context
        for sequence in self.active:
            assert context.positions(cells.seq_id(sequence))[1] == sequence.num_done - 1
        for seq_id in cells._free:
            for each in (seq_id, self.engine.limits.max_sequences + seq_id):
                assert context.positions(each) == (-1, -1)


@pytest.mark.parametrize(
    "num_steps", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)])]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_steps_get_the_tokens_of_sequential_ones(
    family: str, num_steps: int, build: Build
) -> None:
    engine = build(family, "F32", cache_tokens=512, max_sequences=6)
    steps = RandomSteps(engine, num_steps)
    for _ in range(num_steps):
        steps.step()
        steps.states_are_those_of_the_library()
    for sequence in list(steps.active):
        steps.end(sequence)
    assert engine.num_free_tokens == engine.limits.capacity_tokens
    assert min(steps.num_preempted, steps.num_repeated) > num_steps // 40
    for ids, row in steps.dice.sample(steps.rows, min(len(steps.rows), 200)):
        expected = steps.host.last_logits(Prompt(ids))
        np.testing.assert_allclose(row, expected, atol=1e-3, rtol=0)
    engine.close()


class OnRecurrent(EngineContract):
    family = "mamba"
    kind = "F32"
    atol = 2e-4

    @pytest.fixture(autouse=True)
    def _build(self, build: Build) -> None:
        self._make = build

    def make(self) -> Any:
        return self._make(self.family, self.kind, cache_tokens=2048)

    def prompts(self) -> list[Prompt]:
        return hybrid.prompts()[:3]


@pytest.mark.slow
class TestMamba(OnRecurrent):
    pass


@pytest.mark.slow
class TestMamba2(OnRecurrent):
    family = "mamba2"


@pytest.mark.slow
class TestLfm2(OnRecurrent):
    """Layers with attention beside others."""

    family = "lfm2"


class TestJamba(OnRecurrent):
    """Mamba and attention in turn, and experts in some layers."""

    family = "jamba"


class TestLfm2OfQ80(TestLfm2):
    kind, atol = "Q8_0", 0.3


del EngineContract, OnRecurrent  # pytest would collect them
