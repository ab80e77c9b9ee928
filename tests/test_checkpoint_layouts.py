"""Checkpoints in published layouts answer as in transformers, or loading refuses them.

Models are loaded as users load them. A refusal is one sentence with the reason, and a hint.
"""

import functools
import importlib.util
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vlmkit
import zoo
from checkpoint_layouts import compressed, configs, image_processors, quantized, tokenizers, weights
from checkpoint_layouts.layout import NAME, Layout, drop, edit
from vlmkit.checkpoints.generation_config import FIELDS
from vlmkit.cli import run as command
from vlmkit.errors import CheckpointError, PluginUnavailable, VlmkitError
from vlmkit.kit.install_command import install_command

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
TABLES = (weights, configs, tokenizers, image_processors, quantized, compressed)
LAYOUTS: list[Layout] = [layout for table in TABLES for layout in table.LAYOUTS]
TORCH = {"engine": {"use": "torch", "cache_tokens": 256}, "tokenizer": {"use": "hf"}}
QUESTION, NUM_NEW = "Tell me about the sea.", 6
NO_TEMPLATE = (
    "model 'm' has no chat template: it completes texts and takes no messages; "
    'give it one: tokenizer.chat_template = "PATH"'
)
REFUSED = [layout for layout in LAYOUTS if layout.refused is not None]
ANSWERING = [layout for layout in LAYOUTS if layout.refused is None]


def test_every_field_of_generation_config_has_a_row_in_the_table() -> None:
    import transformers

    stated = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    assert stated <= {field.name for field in FIELDS}


def name_of(layout: Layout) -> str:
    return layout.name


def made(layout: Layout, saved: Saved, folder: Path) -> Path:
    """Return the folder of a layout."""
    for module in layout.needs:
        pytest.importorskip(module)
    place = folder / NAME
    shutil.copytree(saved(layout.base), place)
    layout.change(place)
    return place


def answer(folder: Path, base: str) -> list[int]:
    """Return the tokens that a folder answers with."""
    shown = [zoo.picture(1)] if base in zoo.NAMES_VISION else []
    settings = {"max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True, "logprobs": True}
    files = []
    for number, picture in enumerate(shown):
        file = folder.parent / f"{number}.png"
        picture.save(file)
        files.append(file)
    with vlmkit.load(folder, **TORCH) as model:
        (choice,) = model.generate(QUESTION, images=files, **settings).choices
    return [sample.token_id for sample in choice.samples]


def answer_of_transformers(folder: Path) -> list[int]:
    """Return the tokens that transformers answers with, given the same folder of a text model."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_NEW, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def before(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[int]]:
    """Return a function that returns the answer of a family's unchanged checkpoint."""

    @functools.cache
    def answered(base: str) -> list[int]:
        folder = tmp_path_factory.mktemp(base) / NAME
        shutil.copytree(saved(base), folder)
        return answer(folder, base)

    return answered


def test_there_are_at_least_sixty_layouts() -> None:
    assert len(LAYOUTS) >= 60
    assert len(ANSWERING) >= 25


@pytest.mark.parametrize("layout", ANSWERING, ids=name_of)
def test_a_supported_layout_answers_like_its_reference(
    layout: Layout, saved: Saved, before: Callable[[str], list[int]], tmp_path: Path
) -> None:
    folder = made(layout, saved, tmp_path)
    wanted = before(layout.base) if layout.is_as_before else answer_of_transformers(folder)

    assert answer(folder, layout.base) == wanted


@pytest.mark.parametrize("layout", REFUSED, ids=name_of)
def test_an_unsupported_layout_is_refused_at_load_with_its_reason(
    layout: Layout, saved: Saved, tmp_path: Path
) -> None:
    folder = made(layout, saved, tmp_path)
    with pytest.raises(VlmkitError) as caught:
        vlmkit.load(folder, **TORCH)

    assert isinstance(caught.value, CheckpointError | PluginUnavailable)
    assert str(caught.value) == str(layout.refused).replace("{folder}", str(folder))
    assert layout.hint.replace("{folder}", str(folder)) in caught.value.hint
    assert layout.hint


DOCTORED = {
    "a missing shard": "is missing; fetch it again",
    "a family that comes with its code": "which is never run; there may be a conversion",
    "weights by hqq": "must be installed, which was never tried with vlmkit; load the model",
    "tiktoken's vocabulary alone": "what its control tokens are; fetch tokenizer.json",
}


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one.name in DOCTORED], ids=name_of)
def test_the_doctor_says_why_a_model_is_refused(
    layout: Layout, saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(layout, saved, tmp_path)
    assert command(["doctor", str(folder), "--json"]) == 1

    reasons = [v["reason"] or "" for v in json.loads(capsys.readouterr().out)["verdicts"]]
    assert any(DOCTORED[layout.name] in reason for reason in reasons), reasons


@pytest.mark.parametrize("method", quantized.EXPANDED)
def test_low_bit_floats_answer_like_equal_unquantized_weights(
    method: str, saved: Saved, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    base, change = quantized.EXPANDED[method]
    folders = [tmp_path / "few" / NAME, tmp_path / "plain" / NAME]
    for folder in folders:
        shutil.copytree(saved(base), folder)
        change(folder, is_plain=folder.parent.name == "plain")
    few, plain = (answer(folder, base) for folder in folders)

    assert few == plain
    assert few == answer_of_transformers(folders[1])


def test_refused_low_bit_floats_name_the_missing_extra(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(Layout("fp8", quantized.in_fp8), saved, tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else found(name)
    )
    with pytest.raises(PluginUnavailable, match="'fp8', and to read them accelerate must be") as it:
        vlmkit.load(folder, **TORCH)

    assert it.value.hint.startswith(install_command("vlmkit-torch[quantized]"))


def test_a_refused_sentencepiece_vocabulary_names_the_missing_extra(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(Layout("no tokenizer", drop("tokenizer*")), saved, tmp_path)
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sentencepiece" else found(name)
    )
    with pytest.raises(PluginUnavailable) as caught:
        vlmkit.load(folder, **TORCH)

    assert "'tokenizer.model' alone, and to convert it sentencepiece" in str(caught.value)
    assert caught.value.hint.startswith(install_command("vlmkit-hf[convert]"))


def test_a_gguf_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(CheckpointError, match=r"GGUF file 'm\.gguf' ends within its header"):
        vlmkit.load(file)


def test_a_model_without_a_chat_template_warns_at_load_and_serves_plain_text(
    saved: Saved, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = made(Layout("no template", drop("chat_template.jinja")), saved, tmp_path)
    with caplog.at_level(logging.WARNING, "vlmkit_hf"), vlmkit.load(folder, **TORCH) as model:
        messages = [r.getMessage() for r in caplog.records if r.name.startswith("vlmkit_hf")]
        assert messages == [NO_TEMPLATE]
        assert len(model.embed(["The sea"])) == 1
        with pytest.raises(vlmkit.RequestError, match="this model has no chat template"):
            model.generate(QUESTION)


def test_the_tool_template_renders_only_conversations_with_tools(
    saved: Saved, tmp_path: Path
) -> None:
    layout = Layout("tools", tokenizers.further("tool_use", tokenizers.WITH_TOOLS))
    folder = made(layout, saved, tmp_path)
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {}}}
    with vlmkit.load(folder, **TORCH) as model:
        tokenizer: Any = model.runner._tokenizer
        conversation = [vlmkit.Message.of("user", "What?")]
        plain = tokenizer.prompt(conversation)
        offered = tokenizer.prompt(conversation, tools=[tool])

    assert tokenizer.decode(plain.token_ids) != tokenizer.decode(offered.token_ids)
    assert '"name": "look"' in tokenizer.decode(offered.token_ids)


def test_the_reason_is_stated_once_if_the_config_names_no_engine(
    saved: Saved, tmp_path: Path
) -> None:
    folder = made(Layout("gguf", weights.GGUF), saved, tmp_path)
    with pytest.raises(VlmkitError) as caught:  # of the only engine that reads such files, if any
        vlmkit.load(folder)
    assert str(caught.value).count("its GGUF file 'm-Q4_K_M.gguf' ends within its header") == 1
    folder = made(Layout("hqq", quantized.by("hqq")), saved, tmp_path / "other")
    with pytest.raises(PluginUnavailable) as caught:
        vlmkit.load(folder)

    assert str(caught.value).count("quantized by 'hqq'") == 1
    assert caught.value.hint == "load the model that it was made from"


def test_edit_sets_and_removes_keys_of_a_json_file(tmp_path: Path) -> None:
    edit("a.json", one=1, two=2)(tmp_path)
    edit("a.json", one=None)(tmp_path)

    assert json.loads((tmp_path / "a.json").read_text()) == {"two": 2}
