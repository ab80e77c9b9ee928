"""The vision self-check: an engine gets three images in short prompts, at the first load only."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import vlmkit
from vlmkit.assembly.vision_warm_up import HINT, NUM_AROUND, picture, warm_up_vision
from vlmkit.errors import CheckpointError, ConfigError, EngineError, OutOfMemory, RequestError
from vlmkit.interfaces.engine import VisionSelfCheck
from vlmkit.interfaces.prompt import PromptPlan, Span
from vlmkit.kit import content, user_cache
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.vision_selfcheck import _stops, answered
from vlmkit.types.message import image_parts_of, images_of
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class RecordingEngine(MockEngine):
    """Records the prompts of its self-check, and raises its ``failure``, if any."""

    trial_name: str | None = "a trial"
    failure: Exception | None = None

    def __init__(self, **options):
        super().__init__(MockEngineSettings(**options))
        self.shown = []

    def try_media(self, prompts, encoder):
        self.shown.append(list(prompts))
        if self.failure is not None:
            raise self.failure
        for prompt in prompts:
            assert answered(self, encoder, prompt, prompt.token_ids[:2]) is not None


class LongPromptTokenizer(MockTokenizer):
    """A tokenizer with long or refused prompts, whose arrays have the size of the images."""

    failure: Exception | None = None
    has_one_size = False
    inputs = None

    def prompt(self, messages, **how):
        if self.failure is not None:
            raise self.failure
        filler = vlmkit.Message.of("user", "word " * 200)
        made = super().prompt([filler, *messages, filler], **how)
        if self.has_one_size:
            self.inputs = self.inputs or made.media[0].inputs
            return replace(made, media=tuple(replace(m, inputs=self.inputs) for m in made.media))
        shown = zip(made.media, images_of(messages), strict=True)
        return replace(made, media=tuple(sized(slot, image) for slot, image in shown))


def sized(slot, image):
    pixels = np.zeros((image.height, image.width))
    return replace(slot, inputs={**slot.inputs, "pixels": pixels})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a checkpoint that counts as unchanged, with its own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "mock"}))
    return made


def warm_up(folder, engine, tokenizer=None, **how):
    own = tokenizer or LongPromptTokenizer()
    warm_up_vision(engine, MockVisionEncoder(), own, Checkpoint("m", folder), **how)


def test_the_engine_checks_three_images_with_a_few_tokens_around(folder):
    engine, stages = RecordingEngine(), []
    warm_up(folder, engine, on_stage=stages.append)

    (prompts,) = engine.shown
    slots = [prompt.media[0] for prompt in prompts]
    assert isinstance(engine, VisionSelfCheck)
    assert stages == ["first pictures"]
    assert len(prompts) == len({slot.digest for slot in slots}) == 3
    assert [slot.inputs["pixels"].shape for slot in slots] == [(96, 96), (64, 176), (128, 128)]
    for prompt, slot in zip(prompts, slots, strict=True):
        assert slot.start == NUM_AROUND
        assert len(prompt) == slot.stop + NUM_AROUND
        whole = LongPromptTokenizer().prompt(
            [vlmkit.Message.of("user", "What is it?", [picture(96, 96)])]
        )
        (there,) = whole.media
        assert prompt.token_ids[:NUM_AROUND] == whole.token_ids[: there.start][-NUM_AROUND:]


def test_a_model_with_one_image_size_gets_one_image(folder):
    engine, tokenizer = RecordingEngine(), LongPromptTokenizer()
    tokenizer.has_one_size = True
    warm_up(folder, engine, tokenizer)
    assert [len(prompts) for prompts in engine.shown] == [1]


def test_an_image_with_large_arrays_is_requested_with_fewer_tokens(folder, monkeypatch):
    requested = []

    class SizedTokenizer(LongPromptTokenizer):
        honours = frozenset({"image_detail"})

        def prompt(self, messages, **how):
            (part,) = image_parts_of(messages)
            requested.append((part.image.height, part.options.wanted_tokens))
            return super().prompt(messages, **how)

    warm_up(folder, RecordingEngine(), SizedTokenizer())
    assert requested == [(96, 64), (64, 256), (128, 256)]
    monkeypatch.setattr("vlmkit.assembly.vision_warm_up.MAX_NUMBERS", 1000)
    requested.clear()
    warm_up(folder, RecordingEngine(), SizedTokenizer(), built_with="another")
    assert requested == [(96, 64), (64, 256), (64, 64), (128, 256), (128, 64)]


def test_an_engine_without_a_self_check_gets_no_images(folder):
    plain, unwilling = MockEngine(MockEngineSettings()), RecordingEngine()
    unwilling.trial_name = None
    broken = LongPromptTokenizer()
    broken.failure = AssertionError("nobody asks for a prompt")
    for engine in (plain, unwilling):
        warm_up(folder, engine, broken)
    assert unwilling.shown == []


def test_the_check_is_repeated_after_a_change(folder):
    def shown(built_with="", name="a trial"):
        engine = RecordingEngine()
        engine.trial_name = name
        warm_up(folder, engine, built_with=built_with)
        return bool(engine.shown)

    assert shown()
    assert not shown()
    assert shown(built_with=("mock", {"block_tokens": 4}))
    assert shown(name="another device")
    (folder / "config.json").write_text("{} ")
    assert shown()
    assert not shown()


@pytest.mark.parametrize(
    ("failure", "kind", "message", "hint"),
    [
        (CheckpointError("wrong", hint="so"), CheckpointError, "wrong", "so"),
        (OutOfMemory("the images"), OutOfMemory, "the images", None),
        (
            EngineError("4 rows, and 16 places"),
            CheckpointError,
            "model 'm' cannot answer about pictures: 4 rows, and 16 places",
            HINT,
        ),
        (
            KeyError("a library's own words"),
            CheckpointError,
            "model 'm' cannot answer about pictures: the code of model type 'mock' fails at one",
            HINT,
        ),
    ],
)
def test_a_failed_check_is_an_error_at_each_load(folder, failure, kind, message, hint):
    for _ in range(2):
        engine = RecordingEngine()
        engine.failure = failure
        with pytest.raises(kind, match=message) as caught:
            warm_up(folder, engine)
        assert "library" not in str(caught.value)
        assert hint is None or caught.value.hint == hint


def test_a_prompt_without_image_is_an_error_but_a_missing_template_is_not(folder):
    tokenizer, engine = LongPromptTokenizer(), RecordingEngine()
    tokenizer.failure = RequestError("the template places 0 of 1 images")
    with pytest.raises(CheckpointError, match="no prompt can hold one: the template places 0"):
        warm_up(folder, engine, tokenizer)
    tokenizer.failure = RequestError("there is none", code="no_chat_template")
    warm_up(folder, engine, tokenizer)
    assert engine.shown == []


def test_without_a_writable_cache_the_check_runs_at_each_load(folder, tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    for _ in range(2):
        engine = RecordingEngine()
        warm_up(folder, engine)
        assert engine.shown
    assert not user_cache.folder().exists()


def test_a_folder_that_just_changed_is_checked_at_each_load(folder, monkeypatch):
    monkeypatch.setattr(content, "SETTLED_NS", 10**15)
    assert content.changes(folder) is None
    for _ in range(2):
        engine = RecordingEngine()
        warm_up(folder, engine)
        assert engine.shown


def test_a_full_cache_gives_no_result_and_keeps_no_sequence():
    engine, encoder = RecordingEngine(capacity_tokens=64), MockVisionEncoder()
    shown = picture(96, 96)
    prompt = MockTokenizer().prompt([vlmkit.Message.of("user", "word " * 80, [shown])])
    assert answered(engine, encoder, prompt, [5]) is None

    prompt = MockTokenizer().prompt([vlmkit.Message.of("user", "Hi", [shown])])
    rows = answered(engine, encoder, prompt, [5, 6])
    assert [np.asarray(row).shape for row in rows] == [(engine.limits.vocab_size,)] * 3
    assert answered(engine, encoder, prompt, [5, 6]) is not None, "there is room again"


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=5),
    rest=st.integers(1, 9),
    most=st.integers(1, 20),
)
def test_chunks_split_no_span_and_exceed_the_limit_only_for_a_span(sizes, rest, most):
    spans, end = [], 0
    for gap, length in sizes:
        spans.append(Span(end + gap, end + gap + length))
        end += gap + length
    stops = list(_stops(PromptPlan(tuple(spans)), end + rest, most))

    assert stops[-1] == end + rest
    assert stops == sorted(set(stops))
    for start, stop in zip([0, *stops], stops, strict=False):
        assert not any(span.start < stop < span.stop for span in spans)
        assert stop - start <= most or Span(start, stop) in spans


def test_a_media_encoder_can_be_disabled():
    with vlmkit.load("mock", media_encoder={"use": "none"}) as model:
        assert model.runner.facts.modalities == ("text",)
        assert model.generate("Hello", max_tokens=2).usage.completion_tokens == 2
        with pytest.raises(RequestError, match="takes no images"):
            model.generate([vlmkit.Message.of("user", "What?", [picture(8, 8)])])
    with pytest.raises(ConfigError, match=r"media_encoder\.use is 'none'"):
        vlmkit.load("mock", media_encoder={"use": "none", "max_batch_images": 2})
