"""A model in two GGUF files answers as the plain checkpoint; contradictory files are rejected."""

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import folders, gguf_pairs  # noqa: E402
from quantized_checkpoints.gguf_pairs import PAIRS  # noqa: E402
from vlmkit.kit.checkpoint import Checkpoint  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Source = Callable[[str], Path]


@pytest.fixture(scope="session")
def source(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Source:
    """Return a function that gives a checkpoint of a family that the converters know."""

    def made(family: str) -> Path:
        pair = PAIRS[family]
        return made_once(
            f"pair-{family}",
            lambda folder: gguf_pairs.save(saved(pair.source or family), folder, pair),
        )

    return made


@pytest.mark.parametrize("tower", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("family", PAIRS)
def test_weights_are_exact(family: str, tower: str, source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family, tower=tower)
    one, other = (
        read_model(Checkpoint("m", folder), read_config(Checkpoint("m", folder)), torch.float32)
        for folder in (made.folder, made.plain)
    )
    found = dict(one.named_parameters())
    assert found.keys() == dict(other.named_parameters()).keys()
    for name, weight in other.named_parameters():
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("family", PAIRS)
def test_answers_are_those_of_the_dense_weights(
    family: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family)
    assert_answers_are_equal(family, made.folder, made.plain)


def assert_answers_are_equal(family: str, model: Path, plain: Path) -> None:
    """Compare answers, with those that transformers gives with dense weights."""
    asked = runner.requests(family)
    with pipeline.load(model) as served:
        banned = sorted(served.runner._tokenizer.banned_ids)
        answers = pipeline.stream_all(served, asked)
    wanted = runner.expected(family, plain, asked, banned)
    for (_, samples), reference in zip(answers, wanted, strict=True):
        assert [sample.token_id for sample in samples] == reference.token_ids
        rows = torch.log_softmax(reference.logits, -1)
        for sample, row in zip(samples, rows, strict=True):
            assert sample.logprob == pytest.approx(row[sample.token_id].item(), abs=1e-4)
    assert len({tuple(reference.token_ids) for reference in wanted}) > 1
