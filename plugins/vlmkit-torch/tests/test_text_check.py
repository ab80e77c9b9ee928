"""The self-check at load runs once for the same files, settings, packages and code."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import hybrid
from vlmkit.errors import CheckpointError
from vlmkit.kit import content, selfcheck_records
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine.torch_engine import build
from vlmkit_torch.self_checks import text_check
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return a function that loads a model and returns whether it was checked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    references: list[object] = []
    reference = text_check.reference

    def noted(*arguments: Any) -> Any:
        references.append(arguments)
        return reference(*arguments)

    monkeypatch.setattr(text_check, "reference", noted)

    def load(folder: Path, **settings: Any) -> bool:
        before = len(references)
        own = EngineSettings(**{"cache_tokens": 800, "block_tokens": 4, **settings})
        build(BuildContext("", Checkpoint("m", folder), own)).close()
        return len(references) > before

    return load


def test_a_model_is_checked_once_until_a_file_a_setting_or_a_version_changes(
    checked: Callable[..., bool], saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(saved("llama"), tmp_path / "m")
    assert checked(folder)
    assert not checked(folder)
    assert checked(folder, dtype="bfloat16")
    assert not checked(folder)

    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    assert checked(folder)

    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # other kernels are used
    assert checked(folder)
    assert not checked(folder)
    monkeypatch.setattr(selfcheck_records, "packages", lambda: {"torch-9.9"})
    assert checked(folder)
    monkeypatch.setattr(text_check, "_sources", lambda: "another release of the plugin")
    assert checked(folder)


def test_recurrent_layers_are_checked_once_even_where_checks_are_off(
    checked: Callable[..., bool], saved: Saved, tmp_path: Path
) -> None:
    folder = hybrid.save("lfm2", tmp_path / "m")
    assert [checked(folder, self_check=False) for _ in range(2)] == [True, False]
    text = shutil.copytree(saved("llama"), tmp_path / "text")
    assert not checked(text, self_check=False)


def test_a_refused_model_is_refused_again(
    checked: Callable[..., bool], saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(saved("llama"), tmp_path / "m")
    monkeypatch.setattr(text_check, "TOLERANCE", dict.fromkeys(text_check.TOLERANCE, -1.0))
    for _ in range(2):
        with pytest.raises(CheckpointError, match="differs from the plain one"):
            checked(folder)
