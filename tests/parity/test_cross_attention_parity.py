"""Cross-attention to images: parity, sharing, memory and released state."""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import vlmkit
import zoo
from parity import authors, runner
from vlmkit.errors import CheckpointError, EngineError, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_testing.contracts.engine_host import EngineHost, item_of
from vlmkit_torch.cross_attention import spec, step
from vlmkit_torch.cross_attention.spec import STATES

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
Answered = Callable[[str], list[runner.Answer]]
Patch = pytest.MonkeyPatch
NAME = "mllama"
SIZES = ((40, 40), (84, 40), (50, 100), (160, 60), (96, 96))  # of 1, 2, 2, 3 and 4 tiles
TEXTS = (
    ("Just words.", ()),
    ("<|image|>What is it?", (0,)),
    ("<|image|><|image|>How do they differ?", (4, 1)),
    ("<|image|>This was one. <|image|>And this?", (2, 3)),
    ("<|image|>One, <|image|><|image|>and two more; <|image|>the last is the first.", (0, 3, 1, 0)),
)


@dataclass(frozen=True)
class Case:
    """A text with images, for transformers and for vlmkit."""

    inputs: dict[str, Any]
    prompt: Prompt


def case(folder: Path, text: str, numbers: Seq[int], *, before: str = "") -> Case:
    """Return a text as the family's own processor makes it; without leading text, images first."""
    token = runner.config_of(folder).image_token_id
    shown = [zoo.picture(number, *SIZES[number]) for number in numbers]
    images = {"images": shown} if shown else {}
    made = zoo.processor(NAME)(
        text=[before + text], return_tensors="pt", add_special_tokens=False, **images
    )
    ids = made["input_ids"][0].tolist()
    alone: list[MediaSlot] = []
    for image in shown:
        request = replace(runner.requests(NAME)[0], images=[image])
        alone += runner.prompt(NAME, request, token).media
    places = [place for place, token_id in enumerate(ids) if token_id == token]
    slots = [replace(s, start=p, stop=p + 1) for s, p in zip(alone, places, strict=True)]
    return Case(dict(made), Prompt(tuple(ids), tuple(slots)))


def generated(folder: Path, cases: Seq[Case], *, as_it_is: bool = False) -> list[runner.Answer]:
    """Return what ``generate`` answers; as it is, or as the model's authors have it."""
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    if not as_it_is:
        authors.as_published(model)
    model.generation_config.eos_token_id = None
    answers = []
    for each in cases:
        made = model.generate(
            **each.inputs,
            max_new_tokens=runner.NUM_NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[0, len(each.prompt) :].tolist()
        answers.append(runner.Answer(ids, torch.cat(made.logits).float()))
    return answers


class Counting:
    """An encoder that counts the images that it encodes."""

    identity = "counting"
    media_kinds = frozenset({"image"})

    def __init__(self, encoder: MediaEncoder) -> None:
        self._encoder = encoder
        self.num_encoded = 0

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.num_encoded += len(slots)
        return self._encoder.encode(slots)

    def close(self) -> None:
        self._encoder.close()


def check_nothing_is_held(engine: Any) -> None:
    """Check that no sequence holds blocks, images or state."""
    images = engine._cache.images
    assert (images.num_users, images.num_used_rows, engine._runner.states) == (0, 0, {})
    assert set(images._unused) == set(images._images)
    assert engine._cache.pool.num_free_blocks == engine._cache.pool.num_blocks
    engine._cache.pool.check_integrity()


@pytest.mark.parametrize("step_tokens", [1, 5, 13, 64])
def test_chunks_of_any_length_are_answered_as_by_generate(
    step_tokens: int, saved: Saved, answered: Answered
) -> None:
    outcome = runner.outcome(NAME, saved(NAME), answered(NAME), step_tokens=step_tokens)

    assert outcome.is_parity, outcome


def test_images_before_all_text_are_answered_as_by_generate(saved: Saved) -> None:
    cases = [case(saved(NAME), *text) for text in TEXTS]
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME))
    found = runner.run(engine, encoder, [each.prompt for each in cases])

    outcome = runner.compare(found, generated(saved(NAME), cases, as_it_is=True))

    assert outcome.is_parity, outcome
    assert len({tuple(answer.token_ids) for answer in found}) == len(cases)
    check_nothing_is_held(engine)


def test_images_after_text_are_answered_as_by_the_authors_code(saved: Saved) -> None:
    cases = [case(saved(NAME), *text, before="So look at it. ") for text in TEXTS]
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME))
    found = runner.run(engine, encoder, [each.prompt for each in cases])

    outcome = runner.compare(found, generated(saved(NAME), cases))
    leaking = runner.compare(found, generated(saved(NAME), cases, as_it_is=True))

    assert outcome.is_parity, outcome
    # Once this fails, transformers does as the authors do, and needs no help from `authors`.
    assert leaking.num_equal < len(cases), leaking


def test_answers_are_the_same_alone_and_in_a_batch(saved: Saved) -> None:
    prompts = [case(saved(NAME), *text, before="See: ").prompt for text in TEXTS]
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME), prefix_cache=False)
    together = runner.run(engine, encoder, prompts, arrival_steps=0, step_tokens=31)
    alone = [runner.run(engine, encoder, [prompt])[0] for prompt in prompts]

    outcome = runner.compare(together, alone)

    assert outcome.is_parity, outcome
    check_nothing_is_held(engine)
    assert engine._cache.images.num_rows == 0, "without a prefix cache nothing stays"


def test_a_text_skips_the_cross_attention_layers(saved: Saved) -> None:
    engine, encoder, config = runner.load_engine(NAME, saved(NAME))
    calls: list[int] = []
    for index in config.text_config.cross_attention_layers:
        layer = engine._views.decoder.layers[index]
        layer.register_forward_hook(lambda *_, index=index: calls.append(index))
    with_pictures, text = (case(saved(NAME), *TEXTS[number]).prompt for number in (1, 0))

    runner.run(engine, None, [text])
    assert calls == []
    runner.run(engine, encoder, [with_pictures])
    assert set(calls) == set(config.text_config.cross_attention_layers)


def test_requests_share_an_image_within_a_scope(saved: Saved) -> None:
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME))
    first = case(saved(NAME), *TEXTS[1]).prompt
    other = case(saved(NAME), "<|image|>Something else, then.", (0,)).prompt
    host = EngineHost(engine, lambda p: dict(enumerate(encoder.encode(p.media))))
    one, two = (host.sequence(prompt, scope=b"shared") for prompt in (first, other))
    other_scope = host.sequence(first, scope=b"other")
    for sequence in (one, two):
        assert host.admit(sequence) == 0
    assert engine._cache.images.num_rows == 5
    assert host.admit(other_scope) == 0
    assert engine._cache.images.num_rows == 10

    both = host.step([host.chunk(one), host.chunk(two)])
    two.features = {}  # features of one serve the other
    again = host.decode(two, 40)

    assert len(both) == 2
    assert torch.isfinite(torch.as_tensor(again)).all()
    for sequence in (one, two, other_scope):
        engine.release(sequence)
    check_nothing_is_held(engine)


def test_a_cached_prefix_is_computed_again_if_its_image_was_evicted(saved: Saved) -> None:
    cases = [case(saved(NAME), *text, before="Look! ") for text in TEXTS]
    prompts = [each.prompt for each in cases]
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME), cache_tokens=2000)
    counting = Counting(encoder)
    wanted = generated(saved(NAME), cases)
    cold = runner.run(engine, counting, prompts)
    num_encoded = counting.num_encoded
    assert num_encoded > 0

    warm = runner.run(engine, counting, prompts)
    assert counting.num_encoded == num_encoded, "blocks and pictures were there"

    engine._cache.images.free()
    gone = runner.run(engine, counting, prompts)
    assert counting.num_encoded > num_encoded

    for answers in (cold, warm, gone):
        outcome = runner.compare(answers, wanted)
        assert outcome.is_parity, outcome
    check_nothing_is_held(engine)


def test_images_without_room_wait_or_evict_unused_ones(saved: Saved, answered: Answered) -> None:
    engine, encoder, config = runner.load_engine(NAME, saved(NAME), cache_tokens=2000)
    engine._cache.images.max_rows = 20  # two images of two tiles, or the largest one
    prompts, most = runner.prompts(NAME, config), []
    for _ in range(2):
        answers = runner.run(engine, encoder, prompts, runner.banned_ids(config))
        outcome = runner.compare(answers, answered(NAME))
        assert outcome.is_parity, outcome
        most.append(engine._cache.images.num_rows)
    assert 0 < max(most) <= 20
    check_nothing_is_held(engine)


def test_images_that_exceed_the_cache_are_refused(saved: Saved) -> None:
    engine, _, _ = runner.load_engine(NAME, saved(NAME))
    prompt = case(saved(NAME), *TEXTS[2]).prompt
    engine._cache.images.max_rows = 29

    with pytest.raises(RequestError, match="have 30 rows to attend to, and this engine keeps 29"):
        engine.read(prompt)


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ({}, "features of image 0 of a prompt are not there"),
        ({0: MediaFeatures(1, torch.zeros(1, 64))}, "features of image 0 of a prompt are not"),
        (
            {0: MediaFeatures(1, torch.zeros(1, 64), {STATES: torch.zeros(4, 64)})},
            r"\[4, 64\], and the decoder expects \[5, 64\]",
        ),
    ],
)
def test_features_that_do_not_fit_the_image_fail_only_their_request(
    features: dict[int, MediaFeatures], sentence: str, saved: Saved
) -> None:
    engine, _, _ = runner.load_engine(NAME, saved(NAME))
    host = EngineHost(engine, lambda _: features)
    sequence = host.sequence(case(saved(NAME), *TEXTS[1]).prompt)
    host.admit(sequence)

    with pytest.raises(EngineError, match=sentence):
        engine.forward([item_of(sequence, 0, len(sequence), 1)])
    engine.release(sequence)
    check_nothing_is_held(engine)
    assert engine._cache.images.num_rows == 0


def blank(patch: Patch) -> None:
    made = step._states
    patch.setattr(step, "_states", lambda *args, **how: torch.zeros_like(made(*args, **how)))


def fillers_seen(patch: Patch) -> None:
    patch.setattr(spec.CrossAttentionSpec, "num_tiles", lambda spec, _: spec.max_tiles)


def seen_from_the_start(patch: Patch) -> None:
    made = spec.runs

    def runs(spans: Any, start: int, stop: int) -> Any:
        return made([span._replace(start=0) for span in spans], start, stop)

    patch.setattr(step, "runs", runs)


def seen_to_the_end(patch: Patch) -> None:
    made = spec.CrossAttentionSpec.attending_spans

    def attending_spans(own: Any, prompt: Prompt) -> Any:
        return tuple(s._replace(stop=spec.TO_THE_END) for s in made(own, prompt))

    patch.setattr(spec.CrossAttentionSpec, "attending_spans", attending_spans)


@pytest.mark.parametrize("switch", [blank, fillers_seen, seen_from_the_start, seen_to_the_end])
def test_parity_breaks_with(
    switch: Callable[[Patch], None], saved: Saved, monkeypatch: Patch
) -> None:
    cases = [case(saved(NAME), *text, before="Look! ") for text in TEXTS]
    switch(monkeypatch)
    engine, encoder, _ = runner.load_engine(NAME, saved(NAME))
    found = runner.run(engine, encoder, [each.prompt for each in cases], step_tokens=64)

    outcome = runner.compare(found, generated(saved(NAME), cases))

    assert not outcome.is_parity, outcome
    assert outcome.difference > 1e-2, outcome


@pytest.mark.parametrize("switch", [blank, fillers_seen, seen_from_the_start])
def test_the_vision_self_check_refuses_a_model_with(
    switch: Callable[[Patch], None], saved: Saved, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    switch(monkeypatch)

    with pytest.raises(CheckpointError, match="differs from the family's own code"):
        vlmkit.load(saved(NAME), engine={"use": "torch", "cache_tokens": 400, "block_tokens": 4})
