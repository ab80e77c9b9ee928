"""The source keeps vlmkit's contract: models are found by their names, and nothing else is."""

import json
from pathlib import Path

import pytest

import vlmkit
from vlmkit_testing import ModelContract
from vlmkit_yourname import plugin


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "store" / "tiny", tmp_path / "secret"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    monkeypatch.setenv("MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


class TestStore(ModelContract):
    plugin = plugin
    name = "yourname"

    def added(self) -> str:
        folder = plugin.store() / "new"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "tiny"}))
        return "yourname://new"

    def absent(self) -> str:
        return "yourname://nothing"


def test_a_model_is_found_by_its_name() -> None:
    checkpoint = vlmkit.fetch("yourname://tiny")
    assert checkpoint.model_type == "tiny"


@pytest.mark.parametrize("name", ["nothing", "a/tiny", "Tiny"])
def test_a_missing_model_is_an_error_with_the_known_ones(name: str) -> None:
    with pytest.raises(vlmkit.VlmkitError) as error:
        vlmkit.fetch(f"yourname://{name}")
    assert "yourname://tiny" in error.value.hint


@pytest.mark.parametrize("name", ["..", "%2e%2e/secret", "tiny/../../secret"])
def test_nothing_leads_out_of_the_store(name: str) -> None:
    with pytest.raises(vlmkit.VlmkitError):
        vlmkit.fetch(f"yourname://{name}")


def test_a_revision_is_refused() -> None:
    with pytest.raises(vlmkit.VlmkitError, match="has no revision 'main'"):
        vlmkit.fetch("yourname://tiny", revision="main")
