"""The plugin's hooks: registered providers, imports, and work without torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from vlmkit.cli import run
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins import loader
from vlmkit.plugins.registry import BuildContext
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf import plugin
from vlmkit_hf.hub import repository
from vlmkit_hf.text_side.tokenizer import HfTokenizer

WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = sys.modules["torchvision"] = None  # as if they were not installed
from pathlib import Path
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
image = Image.open(sys.argv[1])
made = {}
for folder in sys.argv[2:]:
    tokenizer = HfTokenizer(Checkpoint("m", Path(folder)), HfTokenizerSettings())
    prompt = tokenizer.prompt([Message.of("user", "What is it?", [image])])
    made[folder] = [prompt.token_ids, [slot.digest.hex() for slot in prompt.media]]
assert sys.modules["torch"] is None
print(json.dumps(made))
"""
LIGHT = """
import sys
from vlmkit_hf import plugin
heavy = {"transformers", "tokenizers", "huggingface_hub", "torch", "numpy", "PIL", "jinja2"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_plugin_registers_a_tokenizer_and_a_model_source() -> None:
    found = loader.load()

    assert "vlmkit-hf" not in found.broken
    assert "hf" in {provider.name for provider in found.tokenizers}
    assert "huggingface" in {provider.name for provider in found.models}


def test_the_plugin_module_imports_no_heavy_library() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True, timeout=600
    )

    assert set(json.loads(run.stdout.replace("'", '"'))) <= {"numpy", "PIL"}


def test_every_vision_family_works_without_torch(
    checkpoint_of: Callable[[str], Checkpoint],
    tokenizer_of: Callable[[str], HfTokenizer],
    tmp_path: Path,
) -> None:
    image = tmp_path / "picture.png"
    zoo.picture(1, 64, 48).save(image)
    folders = {name: str(checkpoint_of(name).path) for name in zoo.NAMES_VISION}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_TORCH, str(image), *folders.values()],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    made = json.loads(run.stdout.splitlines()[-1])

    for name, folder in folders.items():
        messages = [Message.of("user", "What is it?", [Image.open(image)])]
        prompt = tokenizer_of(name).prompt(messages)
        digests = [slot.digest.hex() for slot in prompt.media]
        assert made[folder] == [list(prompt.token_ids), digests], name


def test_a_folder_without_a_tokenizer_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    provider = loader.load().tokenizers.get("hf")

    assert provider.cannot_serve(Checkpoint("m", tmp_path)) == (
        "the model's folder has no tokenizer.json"
    )


def test_a_broken_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    context = BuildContext("m", Checkpoint("m", tmp_path), plugin.HfTokenizerSettings())

    with pytest.raises(CheckpointError, match=r"'tokenizer\.json' of model 'm' is not the file"):
        loader.load().tokenizers.get("hf").build(context)


@pytest.mark.parametrize(
    "reference", ["org/name", "Qwen/Qwen2.5-VL-3B-Instruct", "a/b_c.d", "a/b:Q4_K_M"]
)
def test_hub_ids_are_accepted(reference: str) -> None:
    assert repository.objection(reference) is None


@pytest.mark.parametrize(
    "reference",
    [
        "demo",
        "./org/name",
        "/org/name",
        "a/b/c",
        "a/..",
        "../b",
        "a b/c",
        "",
        "a/b--c",
        "a/b:",
        "a/b:..",
        "b:c",
    ],
)
def test_references_other_than_hub_ids_are_refused(reference: str) -> None:
    reason = "a hub id reads org/name, or org/name:TAG for a single file"
    assert repository.objection(reference) == reason


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("chat_template.jinja", "{% for m in messages %}", "is not valid Jinja"),
        ("tokenizer.json", "{", "is not the file of a tokenizer"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', "eos_token_id"),
    ],
)
def test_doctor_refuses_the_files_that_a_load_refuses(
    checkpoint_of: Callable[[str], Checkpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: str,
    reason: str,
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(checkpoint_of("llava").path, folder)
    (folder / file).write_text(content)

    assert run(["doctor", str(folder), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    (verdict,) = (v for v in verdicts if (v["component"], v["provider"]) == ("tokenizer", "hf"))
    assert not verdict["is_chosen"]
    assert reason in verdict["reason"]
