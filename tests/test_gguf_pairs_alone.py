"""A GGUF file with its vision tower beside it answers as the folder that it was made from."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import gguf  # noqa: E402 - beside torch

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import gguf_alone as fields, gguf_pairs  # noqa: E402
from quantized_checkpoints.gguf_folders import FILE  # noqa: E402
from quantized_checkpoints.gguf_pairs import PAIRS, PROJECTOR  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread", "_cache")]

Source = Callable[[str], Path]
FAMILIES = ("gemma3", "idefics3", "smolvlm", "mistral3")
VALUES = {
    "gemma3": {
        "text_config": {
            "num_hidden_layers": 6,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        }
    }
}
"""Values of configurations that files do not state, as llama.cpp assumes them."""


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def source(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Source:
    """Return a function that gives a checkpoint of which two files can be made."""

    def made(family: str) -> Path:
        return made_once(
            f"pair-alone-{family}",
            lambda folder: gguf_pairs.save(
                saved(family), folder, PAIRS[family], VALUES.get(family)
            ),
        )

    return made


def alone(source: Path, place: Path, family: str, **how: Any) -> tuple[Path, Path]:
    """Return a file with its tower beside it, and the plain checkpoint with the same values."""
    pre = "" if family == "gemma3" else "gpt-2"
    writer = fields.fields_of(source, PAIRS[family].text, pre)
    arch = gguf.MODEL_ARCH.LLAMA if family == "mistral3" else None
    made = gguf_pairs.make(source, place, family, more=writer, arch=arch, **how)
    folder = place / "alone"
    folder.mkdir()
    for name in (FILE, PROJECTOR):
        shutil.move(made.folder / name, folder)
    return folder / FILE, made.plain


@pytest.mark.parametrize("family", FAMILIES)
def test_two_files_alone_answer_as_the_dense_model(
    family: str, source: Source, tmp_path: Path
) -> None:
    file, plain = alone(source(family), tmp_path, family)
    asked = runner.requests(family)
    with pipeline.load(file, sizes={"dtype": "float32"}) as served:
        banned = sorted(served.runner._tokenizer.banned_ids)
        answers = pipeline.stream_all(served, asked)
    wanted = runner.expected(family, plain, asked, banned)
    for (_, samples), reference in zip(answers, wanted, strict=True):
        assert [sample.token_id for sample in samples] == reference.token_ids
        rows = torch.log_softmax(reference.logits, -1)
        for sample, row in zip(samples, rows, strict=True):
            assert sample.logprob == pytest.approx(row[sample.token_id].item(), abs=1e-4)
