"""Tokens equal those of transformers with the same weights; neighbours, prefixes, limits."""

import random
from collections.abc import Callable
from ctypes import c_uint8
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity import hybrid, runner
from vlmkit.errors import CheckpointError, ConfigError, EngineError, RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_testing.contracts.engine_host import EngineHost, item_of

pytestmark = pytest.mark.torch

Build = Callable[..., Any]
Made = Callable[..., Path]
NUM_TOGETHER = 8
KINDS = {"F32": 1e-3, "F16": 4e-2, "Q8_0": 0.5, "Q4_0": 0.5, "Q4_K": 0.5}
"""The largest difference of a logit from transformers. Logits reach 5. Products round their inputs
to 16 bits for weights of 16 bits, and to 8 bits for quantized ones: in models with random weights,
whose values are large, that moves logits by 0.3."""

MARGINS = {"F32": 1e-3, "F16": 1e-3, "Q8_0": 0.1}
"""The largest margin of two logits whose order may differ in a batch: sums have another order, and
inputs near a border are rounded the other way."""


def some_prompts(num: int, longest: int = 60) -> list[Prompt]:
    dice = random.Random(7)
    lengths = [dice.randrange(3, longest) for _ in range(num)]
    return [Prompt(tuple(dice.randrange(3, 300) for _ in range(n))) for n in lengths]


def first_difference(ours: runner.Answer, theirs: runner.Answer) -> float | None:
    """Return the margin of the second logits where tokens first differ; None if they are equal."""
    for row, (one, other) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        if one != other:
            return float(theirs.logits[row, other] - theirs.logits[row, one])
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_tokens_equal_those_of_transformers(
    family: str, kind: str, made: Made, build: Build
) -> None:
    prompts = hybrid.prompts()
    expected = runner.continued(made(family, kind) / "plain" / family, prompts)
    engine = build(family, kind)
    found = runner.run(engine, None, prompts)
    engine.close()
    for ours, theirs in zip(found, expected, strict=True):
        margin = first_difference(ours, theirs)
        assert margin is None or margin < 2 * KINDS[kind], "another token, and rounding is less"
    assert runner.compare(found, expected).difference < KINDS[kind]


@pytest.mark.parametrize("kind", MARGINS)
def test_eight_sequences_at_once_get_the_tokens_of_each_alone(kind: str, build: Build) -> None:
    engine = build("llama", kind)
    prompts = some_prompts(NUM_TOGETHER)
    alone = [runner.run(engine, None, [prompt])[0] for prompt in prompts]
    together = runner.run(engine, None, prompts, arrival_steps=0, step_tokens=64)
    engine.close()
    margins = [
        margin
        for one, other in zip(together, alone, strict=True)
        if (margin := first_difference(one, other)) is not None
    ]
    assert all(margin < MARGINS[kind] for margin in margins), margins
    assert len(margins) <= NUM_TOGETHER // 3


def test_random_steps_get_the_tokens_of_sequential_ones(build: Build) -> None:
    """Admissions, prefix hits, drafts, preemptions and releases in any order."""
    engine = build("llama", "F32", cache_tokens=512, max_sequences=6)
    assert _state_sizes(engine)[1] > 0
    _random_steps(engine, 120, seed=1)
    engine.close()


@pytest.mark.slow
def test_ten_thousand_random_steps_get_the_tokens_of_sequential_ones(build: Build) -> None:
    engine = build("llama", "F32", cache_tokens=512, max_sequences=6)
    assert _state_sizes(engine)[1] > 0
    _random_steps(engine, 10_000, seed=2)
    engine.close()


class RandomSteps:
    """Sequences with common beginnings, in random steps; keeps each row with its tokens."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.host, self.dice = engine, EngineHost(engine), random.Random(seed)
        self.beginnings = [self.tokens(40) for _ in range(3)]
        self.active: list[Any] = []
        self.rows: list[tuple[tuple[int, ...], Any]] = []
        self.num_shared = 0

    def tokens(self, num: int) -> tuple[int, ...]:
        return tuple(self.dice.randrange(3, 300) for _ in range(num))

    def keep(self, sequence: Any, row: Any) -> None:
        self.rows.append((tuple(sequence.tokens(0, len(sequence))), np.array(row)))

    def begin(self) -> None:
        first = self.dice.choice(self.beginnings)[: self.dice.randrange(1, 41)]
        prompt = Prompt(first + self.tokens(self.dice.randrange(1, 30)))
        sequence = self.host.sequence(prompt, scope=b"all")
        if (num_cached := self.host.admit(sequence)) is not None:
            self.num_shared += num_cached
            self.active.append(sequence)
            row = self.host.prefill(sequence, chunk_tokens=self.dice.randrange(1, 40))
            self.keep(sequence, row)

    def end(self, sequence: Any) -> None:
        self.engine.release(sequence)
        self.active.remove(sequence)

    def draft(self) -> None:
        sequence = self.dice.choice(self.active)
        if not self.engine.reserve(sequence, len(sequence) + 4):
            return self.end(sequence)
        item = self.host.next_item(sequence, *self.tokens(1), self.tokens(3))
        self.keep(sequence, self.host.step([item])[0])
        return self.host.accept(item, self.dice.randrange(4))

    def decode(self) -> None:
        items = []
        for sequence in list(self.active):
            if len(sequence) < 150 and self.engine.reserve(sequence, len(sequence) + 1):
                items.append(self.host.next_item(sequence, *self.tokens(1)))
            else:
                self.end(sequence)
        for item, row in zip(items, self.host.step(items), strict=True):
            self.keep(item.sequence, row)

    def step(self) -> None:
        action = self.dice.random()
        if action < 0.3 or not self.active:
            self.begin()
        elif action < 0.45:
            self.end(self.dice.choice(self.active))
        elif action < 0.65:
            self.draft()
        else:
            self.decode()


def _random_steps(engine: Any, num_steps: int, seed: int) -> None:
    steps = RandomSteps(engine, seed)
    for _ in range(num_steps):
        steps.step()
        _cells_are_those_of_the_library(engine, steps.active)
    for sequence in list(steps.active):
        steps.end(sequence)
    assert engine.num_free_tokens == engine.limits.capacity_tokens
    assert steps.num_shared > num_steps, "no prefix was shared"
    for ids, row in steps.dice.sample(steps.rows, min(len(steps.rows), 200)):
        expected = steps.host.last_logits(Prompt(ids))
        np.testing.assert_allclose(row, expected, atol=1e-3, rtol=0)


def _cells_are_those_of_the_library(engine: Any, active: list[Any]) -> None:
    """Compare what the engine counts with what the library saves of each sequence."""
    cells, context = engine._cells, engine._context
    base, each = _state_sizes(engine)
    for sequence in active:
        seq_id = cells.seq_id(sequence)
        num_tokens = cells._num_computed[seq_id]
        assert context.positions(seq_id) == (0, num_tokens - 1)
        assert context.state_bytes(seq_id) == base + num_tokens * each
    for seq_id in (*cells._free, cells._spare):
        assert context.positions(seq_id) == (-1, -1)
    saved = cells._saved
    assert saved._num_blocks == sum(piece.num_blocks for piece in saved._pieces)
    assert saved._num_blocks <= cells.pool.num_blocks
    assert {block for piece in saved._pieces for block in piece.blocks} == set(saved._piece_of)
    for piece in saved._pieces:
        assert piece.blocks
        assert len(piece.saved) == base + piece.num_blocks * cells.pool.block_tokens * each
    unused = [b for b in range(cells.pool.num_blocks) if cells.pool.is_cached(b)]
    assert all(block in saved for block in unused), "a block can be shared and is lost"


def _state_sizes(engine: Any) -> tuple[int, int]:
    """Return the bytes of a saved sequence, and of each of its cells; measured once."""
    if not hasattr(engine, "state_sizes"):
        host, sizes = EngineHost(engine), []
        for num_tokens in (8, 16):
            sequence = host.sequence(Prompt(tuple(range(3, 3 + num_tokens))))
            assert host.admit(sequence) == 0
            host.prefill(sequence)
            sizes.append(engine._context.state_bytes(engine._cells.seq_id(sequence)))
            engine.release(sequence)
        each = (sizes[1] - sizes[0]) // 8
        engine.state_sizes = sizes[0] - 8 * each, each
    found: tuple[int, int] = engine.state_sizes
    return found


def test_prefixes_of_many_released_sequences_are_shared(build: Build) -> None:
    """None of them has cells, which each computation would read."""
    engine = build("llama", "F32", cache_tokens=4096, max_sequences=2)
    host = EngineHost(engine)
    prompts = some_prompts(150, longest=40)
    for prompt in prompts:
        sequence = host.sequence(prompt, scope=b"all")
        assert host.admit(sequence) is not None
        host.prefill(sequence)
        engine.release(sequence)
    assert [engine._context.positions(seq_id) for seq_id in range(3)] == [(-1, -1)] * 3
    size = engine._cells.pool.block_tokens
    for newest in prompts[-8:]:
        sequence = host.sequence(newest, scope=b"all")
        assert host.admit(sequence) == (len(newest) - 1) // size * size
        row = host.prefill(sequence)
        np.testing.assert_allclose(row, host.last_logits(newest), atol=1e-3, rtol=0)
        engine.release(sequence)
    engine.close()


def test_a_part_of_a_long_saved_prefix_is_shared(build: Build) -> None:
    """It is saved in several pieces, which have room beside full sequences."""
    engine = build("llama", "F32", cache_tokens=1024, max_sequence_tokens=900, max_sequences=3)
    host = EngineHost(engine)
    dice = random.Random(3)
    ids = tuple(dice.randrange(3, 300) for _ in range(700))
    first = host.sequence(Prompt(ids), scope=b"all")
    assert host.admit(first) == 0
    host.prefill(first)
    engine.release(first)
    other = host.sequence(Prompt(ids[:8] + (5,) * 300))
    assert host.admit(other) == 0
    host.prefill(other)
    for num in (300, 256, 100):
        sequence = host.sequence(Prompt((*ids[:num], 7)), scope=b"all")
        assert host.admit(sequence) == num
        row = host.prefill(sequence)
        np.testing.assert_allclose(row, host.last_logits(sequence.prompt), atol=1e-3, rtol=0)
        engine.release(sequence)
    engine.close()


def test_without_memory_for_a_saved_prefix_it_is_computed_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> bytearray:
        raise MemoryError

    engine = build("llama", "F32")
    host = EngineHost(engine)
    [prompt] = some_prompts(1)
    monkeypatch.setattr(engine._context, "save", refuse)
    for _ in range(2):
        sequence = host.sequence(prompt, scope=b"all")
        assert host.admit(sequence) == 0
        host.prefill(sequence)
        engine.release(sequence)
    engine.close()


def test_a_saved_prefix_that_cannot_be_restored_is_computed_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build("llama", "F32")
    host = EngineHost(engine)
    [prompt] = some_prompts(1, longest=40)
    expected = host.last_logits(prompt)
    first = host.sequence(prompt, scope=b"all")
    assert host.admit(first) == 0
    host.prefill(first)
    engine.release(first)
    monkeypatch.setattr(engine._context, "load", partial(_cannot_restore, engine._context))
    sequence = host.sequence(prompt, scope=b"all")
    assert host.admit(sequence) == 0
    np.testing.assert_allclose(host.prefill(sequence), expected, atol=1e-3, rtol=0)
    _cells_are_those_of_the_library(engine, [sequence])
    engine.release(sequence)
    _cells_are_those_of_the_library(engine, [])
    engine._cells.pool.check_integrity()
    assert engine.num_free_tokens == engine.limits.capacity_tokens
    engine.close()


def _cannot_restore(context: Any, seq_id: int, saved: bytearray) -> None:
    """Restore a part, as the library does before it fails."""
    view = (c_uint8 * len(saved)).from_buffer(saved)
    context._functions.llama_state_seq_set_data(context._handle, view, len(saved), seq_id)
    raise EngineError("the library llama.cpp cannot restore saved tokens in its cache")


def test_one_batch_holds_a_step_and_its_logits_are_not_copied(build: Build) -> None:
    engine = build("llama")
    host = EngineHost(engine)
    one, other = some_prompts(2)
    first, second = host.sequence(one), host.sequence(other)
    assert host.admit(first) == host.admit(second) == 0
    host.prefill(first)
    logits: Any = engine.forward([host.next_item(first, 7), host.chunk(second)]).logits
    assert logits.shape == (2, engine.limits.vocab_size)
    assert not logits.flags.owndata
    engine.close()


def test_more_tokens_than_a_batch_holds_are_several_batches(build: Build) -> None:
    engine = build("llama", "F32", max_chunk_tokens=150, cache_tokens=2048)
    host = EngineHost(engine)
    most = engine._context.max_batch_tokens
    prompts = [Prompt(tuple(range(3, 153))) for _ in range(most // 150 + 2)]
    sequences = [host.sequence(prompt) for prompt in prompts]
    assert all(host.admit(sequence) == 0 for sequence in sequences)
    rows = host.step([item_of(sequence, 0, 150, 1) for sequence in sequences])
    assert len(rows) == len(prompts)
    for row in rows:
        np.testing.assert_allclose(row, rows[0], atol=1e-3, rtol=0)
    engine.close()


def test_images_and_unknown_tokens_are_refused_by_name(build: Build) -> None:
    engine = build("llama")
    slot = MediaSlot(0, 1, b"a", {}, 1)
    with pytest.raises(RequestError, match="images that its own tokenizer has prepared"):
        engine.read(Prompt((3,), (slot,)))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        engine.read(Prompt((3, 10**6)))
    engine.close()


def test_impossible_sizes_are_refused_before_the_library_is_opened(build: Build) -> None:
    with pytest.raises(ConfigError, match="the model was made for 2048 tokens"):
        build("llama", max_sequence_tokens=4096, library="absent")
    with pytest.raises(ConfigError, match="the cache has room for 3 tokens"):
        build("llama", cache_tokens=3, library="absent")


def test_a_file_that_is_cut_is_refused_before_the_library_is_opened(
    made: Made, build: Build, tmp_path: Path
) -> None:
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.registry import BuildContext
    from vlmkit_llama.build import build_engine
    from vlmkit_llama.settings import EngineSettings
    from vlmkit_quantized.gguf_alone import derived

    file = tmp_path / "cut.gguf"
    content = (made("llama") / "model.gguf").read_bytes()
    file.write_bytes(content)
    checkpoint = derived(Checkpoint("cut", tmp_path, file=file))
    file.write_bytes(content[:-4096])
    settings = EngineSettings(library="absent")
    with pytest.raises(CheckpointError, match="ends within its tensor") as caught:
        build_engine(BuildContext("", checkpoint, settings))
    assert caught.value.hint == "load the model that it was made from"
