"""The tokenizer of a folder is compared with that of the GGUF file in it."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_llama.tokenizer_check import FILE, compare_tokenizers

pytestmark = pytest.mark.torch

Made = Callable[..., Path]


@pytest.fixture
def folder(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made("llama") / "plain" / "llama", tmp_path / "model"))


@pytest.fixture
def file(made: Made) -> Path:
    return made("llama") / "model.gguf"


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    whole = json.loads((folder / FILE).read_text())
    change(whole)
    (folder / FILE).write_text(json.dumps(whole))


def test_equal_tokenizers_split_a_thousand_texts_alike(
    folder: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compare_tokenizers(Checkpoint("m", folder), file)
    assert not caplog.records


def test_the_tokenizer_of_another_model_is_refused_at_load(folder: Path, file: Path) -> None:
    def swap(whole: dict[str, object]) -> None:
        vocab = whole["model"]["vocab"]
        first, second = sorted(vocab, key=vocab.__getitem__)[100:102]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    edit(folder, swap)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    shutil.copy(file, folder)
    with pytest.raises(CheckpointError, match="has the tokenizer of another model: its token 100"):
        vlmkit.load(folder, engine={"use": "llama", "cache_tokens": 512}, runner={"use": "none"})


def test_another_way_to_split_texts_is_logged_with_an_example(
    folder: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(folder, lambda whole: whole.update(normalizer={"type": "Lowercase"}))
    with caplog.at_level(logging.WARNING, "vlmkit_llama"):
        compare_tokenizers(Checkpoint("m", folder), file)
    assert "of 1000 texts in another way" in caplog.text


def test_a_file_whose_tokenizer_is_not_supported_is_not_compared(
    folder: Path, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.prf"))
    with caplog.at_level(logging.INFO, "vlmkit_llama"):
        compare_tokenizers(Checkpoint("m", folder), other)
    assert "is not compared" in caplog.text
