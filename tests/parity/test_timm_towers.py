"""Families with a timm tower answer as ``generate`` does, where timm is installed."""

from pathlib import Path

import pytest

import vlmkit
import zoo
from parity import runner
from parity.pipeline import ENGINES, stream_all

pytest.importorskip("timm", exc_type=ImportError)
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", zoo.NAMES_TIMM)
def test_a_family_with_a_timm_tower_is_answered_as_by_generate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, requests = zoo.save(name, tmp_path / "m"), runner.requests(name)
    with vlmkit.load(folder, engine=ENGINES["torch"]) as model:
        banned = sorted(model.runner._tokenizer.banned_ids)
        answers = stream_all(model, requests)
    wanted = runner.expected(name, folder, requests, banned)

    ids = [[sample.token_id for sample in samples] for _, samples in answers]
    assert ids == [reference.token_ids for reference in wanted]
    assert len({tuple(each) for each in ids}) == len(ids)
