"""Engines answer as ``generate`` does: same tokens, logits equal up to rounding."""

import threading
from collections.abc import Callable, Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import zoo
from parity import families, runner
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_torch.engine import packing
from vlmkit_torch.model import views

pytestmark = pytest.mark.torch

NAMES = (*zoo.NAMES_VISION, *zoo.NAMES_TEXT)
Saved = Callable[[str], Path]
Answered = Callable[[str], list[runner.Answer]]


class Library(NamedTuple):
    """What makes an engine, and of which folder of a family."""

    load: Callable[..., Any]
    folder: Saved


@pytest.fixture(params=["torch", "onnx"])
def library(request: pytest.FixtureRequest, saved: Saved, exported: Saved) -> Library:
    """Give each library in turn."""
    if request.param == "torch":
        return Library(runner.load_engine, saved)
    return Library(runner.load_onnx_engine, exported)


def _counting(make: Callable[..., Any], made: list[Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        made.append(arguments[0])
        return make(*arguments)

    return counted


@pytest.mark.parametrize("name", families.mechanisms(NAMES))
def test_four_requests_in_a_batch_are_answered_as_by_generate_alone(
    name: str, saved: Saved, answered: Answered
) -> None:
    outcome = runner.outcome(name, saved(name), answered(name))

    assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "qwen3_vl", "gemma3", "paligemma"])
def test_a_cache_too_small_for_all_four_changes_no_answer(
    name: str, library: Library, answered: Answered
) -> None:
    longest = max(
        len(runner.reference_inputs(name, r)["input_ids"][0]) for r in runner.requests(name)
    )
    room = longest + runner.NUM_NEW + 12
    outcome = runner.outcome(
        name, library.folder(name), answered(name), load=library.load, cache_tokens=room
    )

    assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_prompts_with_a_cached_prefix_are_answered_equally(
    name: str, library: Library, answered: Answered
) -> None:
    engine, encoder, config = library.load(name, library.folder(name), cache_tokens=2000)
    prompts = runner.prompts(name, config)
    banned = runner.banned_ids(config)
    first = runner.compare(runner.run(engine, encoder, prompts, banned), answered(name))
    again = runner.compare(runner.run(engine, encoder, prompts, banned), answered(name))

    assert first.is_parity, first
    assert again.is_parity, again


@pytest.mark.parametrize("name", ["gemma3", "paligemma"])
def test_a_text_has_no_indivisible_spans(name: str, library: Library, saved: Saved) -> None:
    engine, encoder, config = library.load(name, library.folder(name))
    text = Prompt(tuple(range(40, 101)))
    ids, banned = torch.tensor([text.token_ids]), runner.banned_ids(config)
    made = runner.load_reference(name, saved(name)).generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=runner.NUM_NEW,
        do_sample=False,
        suppress_tokens=banned,
        output_logits=True,
        return_dict_in_generate=True,
    )
    wanted = runner.Answer(made.sequences[0, len(text) :].tolist(), torch.cat(made.logits).float())
    outcome = runner.compare(runner.run(engine, encoder, [text], banned), [wanted])

    assert engine.read(text).spans == ()
    assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_the_known_layout_of_text_equals_that_of_the_family(name: str, saved: Saved) -> None:
    engine, _, _ = runner.load_engine(name, saved(name))
    reader, text = engine._reader, Prompt(tuple(range(40, 101)))
    known, asked = reader.layout(text), reader._read_layout(text)

    assert (known.offset, known.views) == (asked.offset, asked.views)
    assert (known.positions is None) == (asked.positions is None)
    assert known.positions is None or np.array_equal(known.positions, asked.positions)


def test_a_text_needs_no_full_attention_mask(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, encoder, config = runner.load_engine("gemma3", saved("gemma3"))
    asked = runner.prompts("gemma3", config)
    sizes: list[tuple[int, int]] = []

    def sized(**kwargs: Any) -> torch.Tensor:
        sizes.append((kwargs["q_length"], kwargs["kv_length"]))
        return sdpa_mask(**kwargs)

    sdpa_mask = views.sdpa_mask
    monkeypatch.setattr(views, "sdpa_mask", sized)
    runner.run(engine, None, [prompt for prompt in asked if not prompt.media])
    assert sizes == []

    runner.run(engine, encoder, asked[:1])
    assert {width for _, width in sizes} == {len(asked[0])}, "an image's block needs them"


@pytest.mark.parametrize("name", ["gemma3", "paligemma"])
def test_a_mask_read_a_few_rows_at_a_time_changes_no_answer(
    name: str, saved: Saved, answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MASK_ROWS", 5)
    outcome = runner.outcome(name, saved(name), answered(name))

    assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "gpt_oss", "qwen3_vl"])
def test_packed_weights_change_no_answer(
    name: str, saved: Saved, answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_NUMBERS", 0)
    monkeypatch.setattr(packing, "FIRST_SEQUENCES", 0)
    packed = []
    monkeypatch.setattr(packing, "PackedLinear", _counting(packing.PackedLinear, packed))
    outcome = runner.outcome(name, saved(name), answered(name))

    assert outcome.is_parity, outcome
    assert len(packed) > 5


@pytest.mark.parametrize("name", families.mechanisms(zoo.NAMES_VISION))
def test_features_of_images_encoded_together_equal_those_alone(name: str, saved: Saved) -> None:
    _, encoder, config = runner.load_engine(name, saved(name))
    first, *_ = runner.requests(name)
    # The last two are of one size, which families compute in one call, and look different.
    twins = [replace(first, images=[zoo.picture(seed)]) for seed in (11, 12)]
    prompts = runner.prompts(name, config)
    prompts += [runner.prompt(name, twin, config.image_token_id) for twin in twins]
    slots = [slot for prompt in prompts for slot in prompt.media]
    alone = [encoder.encode([slot])[0] for slot in slots]

    for together, single in zip(encoder.encode(slots), alone, strict=True):
        assert together.embeddings.shape == single.embeddings.shape
        assert (together.embeddings - single.embeddings).abs().max() < 1e-4
        for level, rows in single.extra.items():
            assert (together.extra[level] - rows).abs().max() < 1e-4


class Replay:
    """An encoder that returns features that another one computed earlier."""

    identity = "replay"
    media_kinds = frozenset({"image"})

    def __init__(self, slots: Seq[MediaSlot], features: Seq[MediaFeatures]) -> None:
        self._known = {slot.digest: made for slot, made in zip(slots, features, strict=True)}

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [self._known[slot.digest] for slot in slots]

    def close(self) -> None:
        self._known.clear()


@pytest.mark.parametrize("name", families.mechanisms(zoo.NAMES_VISION))
def test_a_concurrent_encoder_changes_neither_features_nor_answers(
    name: str, saved: Saved, answered: Answered
) -> None:
    engine, encoder, config = runner.load_engine(name, saved(name))
    prompts = runner.prompts(name, config)
    slots = [slot for prompt in prompts for slot in prompt.media]
    before = encoder.encode(slots)
    is_over, beside = threading.Event(), []

    def encode() -> None:
        while not is_over.is_set():
            beside.append(encoder.encode(slots))

    thread = threading.Thread(target=encode)
    thread.start()
    banned = runner.banned_ids(config)
    answers = runner.run(engine, Replay(slots, before), prompts, banned)
    is_over.set()
    thread.join()
    outcome = runner.compare(answers, answered(name))

    assert outcome.is_parity, outcome
    assert beside
    for features in beside:
        for made, wanted in zip(features, before, strict=True):
            assert (made.embeddings - wanted.embeddings).abs().max() < 1e-5
            assert set(made.extra) == set(wanted.extra)
