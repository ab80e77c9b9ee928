"""Models that answer with one part of a checkpoint, or merge image features in their own way."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vlmkit
import zoo
from parity import runner
from parity.pipeline import conversation, load, stream_all
from parity.test_pipeline_parity import SIZES
from vlmkit.errors import CheckpointError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.images.facts import family_token, stated_token
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_torch.loading import reading

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]


def request_of(*images: Image.Image, text: str = "What is it?") -> runner.Request:
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    return runner.Request([{"role": "user", "content": parts}], list(images))


def changed(folder: Path, to: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy a checkpoint and change one of its files."""
    shutil.copytree(folder, to)
    content = json.loads((to / file).read_text())
    change(content)
    (to / file).write_text(json.dumps(content))
    return to


@pytest.mark.parametrize("name", zoo.NAMES_THINKERS)
def test_an_answer_depends_on_the_image(name: str, saved: Saved) -> None:
    with load(saved(name), sizes=SIZES.get(name)) as model:
        shown = [request_of(zoo.picture(seed)) for seed in (11, 12)]
        (_, one), (_, other) = stream_all(model, shown)

    differences = [abs(a.logprob - b.logprob) for a, b in zip(one, other, strict=True)]
    assert max(differences) > 10 * runner.TOLERANCE


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_an_omni_model_is_served_as_its_thinker(name: str, saved: Saved) -> None:
    with load(saved(name)) as model:
        assert model.runner.facts.modalities == ("text", "image")
        assert type(model.runner._engine._views.model).__name__ == zoo.family(name).answers


def test_dtype_and_quantization_of_the_whole_model_apply_to_its_thinker(
    saved: Saved, tmp_path: Path
) -> None:
    def store(config: dict[str, Any]) -> None:
        config["dtype"] = "bfloat16"
        config["quantization_config"] = {"quant_method": "fp8"}
        config["thinker_config"].pop("dtype", None)

    folder = changed(saved("qwen2_5_omni"), tmp_path / "m", "config.json", store)
    config = reading.read_config(Checkpoint("m", folder))

    assert config.model_type == "qwen2_5_omni_thinker"
    assert config.dtype is torch.bfloat16
    assert config.quantization_config == {"quant_method": "fp8", "dequantize": True}


def test_features_of_a_phi_4_image_are_equal_alone_and_beside_a_padded_one(saved: Saved) -> None:
    name = "phi4_multimodal"
    _, encoder, config = runner.load_engine(name, saved(name))
    padded, plain = zoo.picture(2, 84, 40), zoo.picture(3, 50, 100)
    token = config.vision_config.image_token_id
    slots = runner.prompt(name, request_of(padded, plain), token).media
    alone = encoder.encode(slots[1:])[0]

    assert (encoder.encode(slots)[1].embeddings - alone.embeddings).abs().max() < 1e-4


@pytest.mark.parametrize("text", ["Word", " word", "<b>", "\nWord", "1"])
def test_text_after_idefics_2_images_is_spaced_as_by_its_processor(text: str, saved: Saved) -> None:
    with load(saved("idefics2")) as model:
        for count in (1, 2):
            request = request_of(*[zoo.picture(1)] * count, text=text)
            made = model.runner._tokenizer.prompt(conversation(request))
            wanted = runner.reference_inputs("idefics2", request)["input_ids"][0]
            assert list(made.token_ids) == wanted.tolist()


def test_a_got_ocr_prompt_equals_that_of_its_processor(saved: Saved) -> None:
    page = zoo.picture(1)
    with load(saved("got_ocr2")) as model:
        made = model.runner._tokenizer.prompt(conversation(request_of(page, text=" OCR: ")))
    wanted = zoo.processor("got_ocr2")(images=[page], return_tensors="np")["input_ids"][0]

    assert list(made.token_ids) == wanted.tolist()


def test_a_vision_adapter_beside_the_weights_is_refused_and_text_is_served(
    saved: Saved, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved("phi4_multimodal"), tmp_path / "m")
    (folder / "vision-lora").mkdir()
    (folder / "vision-lora" / "adapter_config.json").write_text("{}")
    with pytest.raises(PluginUnavailable, match="with the adapter in 'vision-lora', which lies"):
        load(folder)

    with vlmkit.load(folder, media_encoder={"use": "none"}) as model:
        assert model.runner.facts.modalities == ("text",)


@pytest.mark.parametrize("name", ["llava", "phi4_multimodal", "qwen2_5_omni"])
def test_a_config_without_an_image_token_of_its_own_vocabulary_is_refused(
    name: str, saved: Saved, tmp_path: Path
) -> None:
    def forget(config: dict[str, Any]) -> None:
        for key in ("image_token_id", "image_token_index"):
            config.pop(key, None)
        for part in config.values():
            if isinstance(part, dict):
                forget(part)

    folder = changed(saved(name), tmp_path / "m", "config.json", forget)
    with pytest.raises(CheckpointError, match="does not say which token stands for an") as caught:
        load(folder)
    token = zoo.processor(name).image_token
    own = zoo.processor(name).tokenizer.convert_tokens_to_ids(token)
    assert f'"image_token_id": {own}, which is {token!r}' in str(caught.value.hint)


def test_a_config_without_an_image_token_uses_that_of_its_family(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(config: dict[str, Any]) -> None:
        own.append(config.pop("image_token_index"))

    own: list[int] = []
    folder = changed(saved("gemma3"), tmp_path / "m", "config.json", forget)
    for place in ("images.facts", "images.load_check"):  # whose vocabulary is the real family's
        monkeypatch.setattr(f"vlmkit_hf.{place}.family_token", lambda _: own[0])
    tokenizer = HfTokenizer(Checkpoint("m", folder), HfTokenizerSettings())
    (slot,) = tokenizer.prompt(conversation(request_of(zoo.picture(1)))).media

    assert slot.num_features == 4
    assert own[0] != zoo.processor("gemma3").tokenizer.boi_token_id


def test_the_image_token_of_a_family_equals_that_of_transformers() -> None:
    assert family_token({"model_type": "llava"}) == 32000
    assert family_token({"model_type": "phi4_multimodal"}) == 200010
    assert family_token({"model_type": "qwen2"}) is None
    assert family_token({"model_type": "no such family"}) is None
    assert stated_token({"vision_config": {"image_token_id": 7}}) == 7


EARS = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "chunk_length": 300,
    "dither": 0.0,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}
"""What real checkpoints say in the same file of what they hear."""


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe", "phi4_multimodal"])
def test_audio_settings_of_a_folder_do_not_change_image_prompts(
    name: str, saved: Saved, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(
        saved(name), tmp_path / "m", "preprocessor_config.json", lambda it: it.update(EARS)
    )
    (folder / "spk_dict.pt").write_bytes(b"")
    request = conversation(request_of(zoo.picture(1)))
    with caplog.at_level("INFO"):
        one, other = (
            HfTokenizer(Checkpoint("m", path), HfTokenizerSettings()).prompt(request)
            for path in (saved(name), folder)
        )

    assert one.token_ids == other.token_ids
    for key, array in one.media[0].inputs.items():
        np.testing.assert_array_equal(array, other.media[0].inputs[key], key)
    assert "model 'm' also takes sound, which is not served" in caplog.text
