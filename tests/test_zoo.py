"""The zoo is a valid reference: complete, reproducible, and its models depend on their images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]


def load(name: str, folder: Path) -> Any:
    auto = transformers.AutoModelForImageTextToText
    if name in zoo.NAMES_TEXT:
        auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [*zoo.NAMES_VISION, *zoo.NAMES_VARIANTS, *zoo.NAMES_OTHERS])
def test_an_answer_of_a_vision_model_depends_on_its_image(name: str, tmp_path: Path) -> None:
    model = load(name, zoo.save(name, tmp_path))
    logits = []
    for seed in (1, 2):
        inputs = zoo.reference(name, ask("What is it?"), [zoo.picture(seed)], return_tensors="pt")
        inputs.pop("labels", None)
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, -1].numpy())

    assert np.abs(logits[0] - logits[1]).max() > 0.05


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_a_vision_model_generates_from_the_reference_inputs(name: str, tmp_path: Path) -> None:
    model = load(name, zoo.save(name, tmp_path))
    inputs = zoo.reference(name, ask("What is it?"), [zoo.picture(1)], return_tensors="pt")
    inputs.pop("labels", None)
    answer = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)

    assert answer.shape[1] == inputs["input_ids"].shape[1] + 4


@pytest.mark.parametrize("name", zoo.NAMES_TEXT)
def test_an_answer_of_a_text_model_depends_on_a_distant_word(name: str, tmp_path: Path) -> None:
    model = load(name, zoo.save(name, tmp_path))
    logits = []
    for word in ("red", "blue"):
        messages = [{"role": "user", "content": f"The {word} one, please."}]
        inputs = zoo.reference(name, messages, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, -1].numpy())

    assert np.abs(logits[0] - logits[1]).max() > 1e-3


@pytest.mark.parametrize("name", [*zoo.NAMES_VISION, *zoo.NAMES_TEXT])
def test_a_saved_folder_names_its_family_template_and_end_tokens(name: str, tmp_path: Path) -> None:
    folder = zoo.save_processor(name, tmp_path)
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]

    assert json.loads((folder / "config.json").read_text())["model_type"] == name
    assert (folder / "chat_template.jinja").exists() == (name != "paligemma")
    assert (folder / "tokenizer.json").exists()
    assert all(isinstance(token, int) for token in (eos if isinstance(eos, list) else [eos]))


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    one, two = (zoo.save("qwen2_vl", tmp_path / str(i)) for i in range(2))

    for path in sorted(one.iterdir()):
        assert (two / path.name).read_bytes() == path.read_bytes(), path.name
