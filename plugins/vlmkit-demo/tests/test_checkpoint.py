"""The packaged files and answers of the demo model."""

import json
from pathlib import Path

import numpy as np
import pytest

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_demo import plugin
from vlmkit_testing import ModelContract

FILES = {
    "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
    "processor_config.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip
GRAPHS = {
    "decoder.onnx", "decoder.onnx.data", "embeddings.safetensors", "vision.onnx",
    "vision_sample.npz", "vlmkit_onnx.json",
}  # fmt: skip


def user(*parts: str) -> dict[str, object]:
    image = {"type": "image"}
    content = [image if p == "<image>" else {"type": "text", "text": p} for p in parts]
    return {"role": "user", "content": content}


class TestDemo(ModelContract):
    plugin = plugin
    name = "demo"


def test_the_demo_model_is_registered_by_its_name() -> None:
    registry: Registry[Checkpoint] = Registry("model", "vlmkit-demo")
    plugin.vlmkit_register_models(registry)
    checkpoint = registry.build("auto", {}, BuildContext("demo"))
    assert checkpoint.model_type == "llava"
    assert checkpoint.has("*.safetensors")


def test_other_models_are_refused() -> None:
    registry: Registry[Checkpoint] = Registry("model", "vlmkit-demo")
    plugin.vlmkit_register_models(registry)
    assert registry.objections("llava-hf/llava-1.5-7b-hf")["demo"] == "it has only the model 'demo'"


def test_the_checkpoint_is_complete_and_small(checkpoint: Path) -> None:
    assert {p.name for p in checkpoint.iterdir()} == FILES | GRAPHS
    assert sum((checkpoint / name).stat().st_size for name in FILES) < 16 * 2**20
    assert sum((checkpoint / name).stat().st_size for name in GRAPHS) < 12 * 2**20
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlavaForConditionalGeneration"]
    assert config["dtype"] == "bfloat16"


def test_the_graphs_have_no_traces_of_the_machine_that_exported_them(checkpoint: Path) -> None:
    for name in GRAPHS:
        assert b"site-packages" not in (checkpoint / name).read_bytes()


def test_the_packaged_tower_computes_the_recorded_features(checkpoint: Path) -> None:
    pytest.importorskip("onnxruntime")
    build = pytest.importorskip("vlmkit_onnx.build")
    encoder = build.build_encoder(BuildContext("", Checkpoint("demo", checkpoint)))
    with np.load(checkpoint / "vision_sample.npz") as kept:
        assert {name.split("/")[0] for name in kept.files} == {"0", "1"}
    encoder.refuse_unlike_export()


def test_the_sample_images_are_packaged(checkpoint: Path) -> None:
    names = {p.name for p in (checkpoint.parent / "pictures").iterdir()}
    assert names == {"shapes.png", "word.jpg", "digit.png"}


def test_any_text_round_trips_through_the_tokenizer(checkpoint: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = "What is in this picture?", "The word CAT in red.", "Größe 日本 42 %", "  two\n\nlines "
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_words_letters_and_digits_are_single_tokens(checkpoint: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert tokenizer.encode("A large red circle.").tokens == ["A", "Ġlarge", "Ġred", "Ġcircle", "."]
    assert tokenizer.encode("QZX 42").tokens == ["Q", "Z", "X", "Ġ", "4", "2"]


def render(checkpoint: Path, messages: list[dict[str, object]], *, prompt: bool = True) -> str:
    jinja = pytest.importorskip("jinja2")
    source = (checkpoint / "chat_template.jinja").read_text(encoding="utf-8")
    template = jinja.Environment(autoescape=False).from_string(source)
    return str(template.render(messages=messages, add_generation_prompt=prompt))


def test_the_template_puts_images_before_the_text(checkpoint: Path) -> None:
    text = render(checkpoint, [user("Which is red?", "<image>", "<image>")])
    assert text == "<|user|><image><image>Which is red?<|end|><|assistant|>"


def test_the_template_accepts_strings_system_texts_and_several_turns(checkpoint: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]},
    ]
    wanted = "<|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>Hello!<|end|>"
    assert render(checkpoint, messages, prompt=False) == wanted


@pytest.mark.torch
def test_the_processor_gives_the_pixels_of_training(checkpoint: Path) -> None:
    pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    from picture import draw, to_pixels
    from scene import sample_scene
    from transformers import AutoProcessor

    rng = numpy.random.default_rng(14)
    image = draw(sample_scene(rng), rng).image
    processor = AutoProcessor.from_pretrained(checkpoint)
    inputs = processor(images=[image], text="<image>", return_tensors="pt")
    pixels = inputs["pixel_values"][0].permute(1, 2, 0).numpy()
    assert inputs["input_ids"].shape == (1, 64)
    assert numpy.abs(pixels - (to_pixels(image) / 127.5 - 1)).max() < 1e-5


@pytest.mark.torch
def test_held_out_questions_are_answered(checkpoint: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    request.getfixturevalue("one_thread")
    from evaluate import TransformersAnswerer, make_cases, score

    cases = make_cases(4, seed=99)
    scores = score(cases, TransformersAnswerer(checkpoint)(cases))
    assert sum(s.right for s in scores.values()) >= 0.9 * len(cases), scores
