"""The vision self-check refuses, at load, a model that would fail at images or misread them.

It does not test how good answers about images are.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vlmkit
import zoo
from parity import arrays, families, runner
from parity.test_negative_controls import (
    Patch,
    bidirectional_off,
    decode_offset_off,
    deepstack_off,
    images_blank,
    positions_off,
    spans_off,
)
from vlmkit.errors import CheckpointError, RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit import content
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.model import views
from vlmkit_torch.self_checks import vision_check
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.vision import encoder

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
TORCH = {"use": "torch", "cache_tokens": 1200, "block_tokens": 4}
TWO_SQUARES = ("llava_next", "kimi_k25")  # whose small models show them in two sizes
ONE_SIZE = ("llava", "gemma3", "paligemma", "video_llava", "aria", "blip-2", "janus", "got_ocr2")
ALWAYS = ("kimi_k25", "video_llava", "blip-2", "emu3", "mllama", "qwen2_5_omni")
TEXT_ALONE = 'media_encoder.use = "none" serves its text'


@pytest.fixture(autouse=True)
def _nothing_was_tried(tmp_path: Path, monkeypatch: Patch) -> None:
    """Remember in a folder of the test's own: others load the same models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def ways(monkeypatch: Patch) -> list[str]:
    """Record each reference answer by the family's own code."""
    made: list[str] = []
    logits = vision_check._ReferenceAnswer.logits

    def noted(plain: Any, **how: Any) -> Any:
        made.append(plain._views.model.config.model_type)
        return logits(plain, **how)

    monkeypatch.setattr(vision_check._ReferenceAnswer, "logits", noted)
    return made


def sampled() -> list[Any]:
    """Return all families; those with their own tower, and some of each zoo, run always."""
    more = [*zoo.NAMES_MORE, *zoo.NAMES_OTHERS, *zoo.NAMES_THINKERS]
    marked = [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.slow) for n in more]
    return [*families.mechanisms(zoo.NAMES_VISION), *marked]


@pytest.mark.parametrize("name", sampled())
def test_the_vision_self_check_tries_an_image_of_each_size_of_a_family(
    name: str, saved: Saved, ways: list[str], monkeypatch: Patch
) -> None:
    sizes: list[Any] = []
    answered = vision_check.answered

    def noted(engine: Any, encoder: Any, prompt: Prompt, answer: Any) -> Any:
        (slot,) = prompt.media
        arrays = slot.inputs.values()
        shapes = tuple((a.shape, tuple(a.flat) if a.size < 64 else None) for a in arrays)
        sizes.append((slot.num_features, shapes))
        return answered(engine, encoder, prompt, answer)

    monkeypatch.setattr(vision_check, "answered", noted)
    with vlmkit.load(saved(name), engine=TORCH) as model:
        pool = model.runner._engine._cache.pool
        assert pool.num_sequences == 0
        assert pool.num_free_blocks == pool.num_blocks
        assert not pool._block_of, "a prefix of nobody's is kept"
        assert model.runner._engine._runner.states == {}
    num_sizes = 1 if name in ONE_SIZE else 3 if name in TWO_SQUARES else 2
    assert len(set(sizes)) == len(sizes) == num_sizes
    answering = Checkpoint(name, saved(name)).answering["model_type"]
    assert ways == [answering] * len(sizes)


@pytest.mark.parametrize(
    ("name", "place", "value", "sentence"),
    [
        (
            "ovis2",
            "vlmkit_torch.model.features.MARKS",
            "?",
            "takes image features in no form that is",
        ),
        (
            "video_llava",
            "vlmkit_hf.images.facts._OLD_NAMES",
            "?",
            "the code of model type 'video_llava' fails at one",
        ),
        (
            "emu3",
            "vlmkit_hf.images.processors.loading.takes_images",
            lambda _: False,
            "no prompt can hold one: this model takes no images",
        ),
    ],
)
def test_a_family_that_fails_at_images_is_refused_at_load_and_serves_text(
    name: str, place: str, value: Any, sentence: str, saved: Saved, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(place, value)  # without which it has no answer about one
    folder = saved(name)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        vlmkit.load(folder, engine=TORCH)
    assert TEXT_ALONE in caught.value.hint

    with vlmkit.load(folder, engine=TORCH, media_encoder={"use": "none"}) as model:
        assert model.runner.facts.modalities == ("text",)
        assert model.generate("Hello", max_tokens=3, ignore_eos=True).usage.completion_tokens == 3
        shown = vlmkit.Message.of("user", "What is it?", [vlmkit.Image.open(zoo.picture(1))])
        with pytest.raises(RequestError, match="takes no images"):
            model.generate([shown])


def changed(folder: Path, to: Path, file: str, **values: Any) -> Path:
    """Copy a checkpoint and set keys of one of its files."""
    shutil.copytree(folder, to)
    stated = json.loads((to / file).read_text())
    (to / file).write_text(json.dumps({**stated, **values}))
    return to


@pytest.mark.parametrize(
    ("name", "file", "values", "sentence"),
    [
        (
            "llava",
            "processor_config.json",
            {"patch_size": 7},
            "gives .4. features for this image, and its prompt has 16 places",
        ),
        (
            "qwen2_5_vl",
            "preprocessor_config.json",
            {"patch_size": 7},
            "the code of model type 'qwen2_5_vl' fails at one",
        ),
        (
            "qwen2_5_vl",
            "preprocessor_config.json",
            {"merge_size": 1},
            "the code of model type 'qwen2_5_vl' fails at one",
        ),
    ],
)
def test_a_processor_that_does_not_fit_the_tower_is_refused_at_load(
    name: str, file: str, values: dict[str, Any], sentence: str, saved: Saved, tmp_path: Path
) -> None:
    folder = changed(saved(name), tmp_path / "m", file, **values)

    with pytest.raises(CheckpointError, match=sentence):
        vlmkit.load(folder, engine=TORCH)
    vlmkit.load(folder, engine={**TORCH, "self_check": False}).close()


def test_a_template_without_image_placeholders_is_refused_at_load(
    saved: Saved, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved("llava"), tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'][-1]['text'] }}")

    with pytest.raises(CheckpointError, match="places 0 of 1 images") as caught:
        vlmkit.load(folder, engine=TORCH)
    assert TEXT_ALONE in caught.value.hint


@pytest.mark.parametrize(
    ("switch", "name"),
    [
        (bidirectional_off, "gemma3"),
        (spans_off, "paligemma"),
        (positions_off, "qwen2_vl"),
        (decode_offset_off, "glm4v"),
        (deepstack_off, "qwen3_vl"),
        (images_blank, "llava"),
        (images_blank, "internvl"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_family_whose_images_are_read_wrongly_is_refused_at_load(
    switch: Callable[[Patch], None], name: str, saved: Saved, monkeypatch: Patch
) -> None:
    switch(monkeypatch)

    with pytest.raises(CheckpointError, match="differs from the family's own code"):
        vlmkit.load(saved(name), engine={**TORCH, "max_chunk_tokens": 64})


def built(folder: Path) -> tuple[Any, Any]:
    """Return engine and encoder of a checkpoint that has no processor."""
    checkpoint, shared = Checkpoint("m", folder), {}
    settings = EngineSettings(cache_tokens=400, block_tokens=4)
    made = torch_engine.build(BuildContext("", checkpoint, settings, shared))
    return made, encoder.build(BuildContext("", checkpoint, EncoderSettings(), shared))


@pytest.mark.parametrize("name", arrays.FAMILIES)
def test_families_with_array_images_pass_the_vision_self_check(name: str, tmp_path: Path) -> None:
    made, seeing = built(arrays.save(name, tmp_path))
    prompts = [prompt for prompt in arrays.prompts(name) if len(prompt.media) == 1]

    made.try_media(prompts, seeing)


def test_positions_that_need_a_mask_are_refused_without_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    folder = arrays.save("qwen3_omni", tmp_path)
    prompts = [arrays.prompts("qwen3_omni")[0]]
    made, seeing = built(folder)
    made.try_media(prompts, seeing)

    monkeypatch.setattr(views.Views, "positions_take_mask", lambda _: False)
    made, seeing = built(folder)
    with pytest.raises(CheckpointError, match="picture of 6 tokens differs from the family's own"):
        made.try_media(prompts, seeing)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_rounding_passes_the_vision_self_check(
    dtype: str, saved: Saved, ways: list[str]
) -> None:
    for name in ("qwen2_5_vl", "gemma3"):
        vlmkit.load(saved(name), engine={**TORCH, "dtype": dtype}).close()
    assert set(ways) == {"qwen2_5_vl", "gemma3"}


def test_the_vision_self_check_tries_only_images_that_the_settings_allow(
    saved: Saved, ways: list[str]
) -> None:
    name = "gemma4_unified"  # which shows the two in 64 and 65 tokens that cannot be cut
    vlmkit.load(saved(name), engine={**TORCH, "max_chunk_tokens": 64}).close()
    assert ways == [name]


def test_an_encoder_of_another_precision_passes_the_vision_self_check(
    saved: Saved, ways: list[str]
) -> None:
    own = {"use": "torch", "dtype": "bfloat16"}
    vlmkit.load(saved("llava"), engine=TORCH, media_encoder=own).close()
    assert set(ways) == {"llava"}


def test_the_self_check_repeats_only_if_a_file_setting_or_package_changes(
    saved: Saved, tmp_path: Path, ways: list[str], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    folder = shutil.copytree(saved("llava"), tmp_path / "m")

    def tried(**settings: Any) -> bool:
        before = len(ways)
        vlmkit.load(folder, engine={**TORCH, **settings}).close()
        return len(ways) > before

    assert tried()
    assert not tried()
    assert tried(block_tokens=8)
    assert not tried(self_check=False)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config + "\n")
    assert tried()
    monkeypatch.setattr("vlmkit.kit.selfcheck_records.packages", lambda: {"torch 1.0"})
    assert tried()


def test_a_refused_model_is_refused_again(saved: Saved, monkeypatch: Patch) -> None:
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    monkeypatch.setattr("vlmkit_torch.model.features.MARKS", "?")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="cannot answer about pictures"):
            vlmkit.load(saved("ovis2"), engine=TORCH)


def test_the_vision_self_check_changes_no_later_answer(saved: Saved) -> None:
    name = "qwen2_vl"  # which keeps a note of the last prompt on itself
    made, seeing, config = runner.load_engine(name, saved(name), prefix_cache=False)
    prompts = runner.prompts(name, config)
    before = runner.run(made, seeing, prompts, runner.banned_ids(config))
    made.try_media(prompts[:1], seeing)
    after = runner.run(made, seeing, prompts, runner.banned_ids(config))

    outcome = runner.compare(after, before)
    assert outcome.is_parity, outcome
