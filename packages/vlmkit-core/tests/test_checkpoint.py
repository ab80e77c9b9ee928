"""Checkpoint folders: JSON files are read within bounds, and fingerprints cover every file."""

import pytest

from vlmkit.errors import CheckpointError
from vlmkit.kit import checkpoint, content
from vlmkit.kit.checkpoint import Checkpoint


def test_an_absent_file_is_read_as_an_empty_object(tmp_path):
    assert Checkpoint("m", tmp_path).read_json("config.json") == {}
    assert Checkpoint("m", tmp_path).model_type == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[" * 200_000, "is not valid JSON"),
        (b"[1]", "is not a JSON object"),
    ],
)
def test_a_file_that_holds_no_object_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint("m", tmp_path).read_json("config.json")
    assert "'config.json' of model 'm'" in str(caught.value)


def test_a_file_over_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_JSON_BYTES", 10)
    (tmp_path / "config.json").write_text("{}" + " " * 10)
    with pytest.raises(CheckpointError, match="over 10 bytes"):
        Checkpoint("m", tmp_path).read_json("config.json")


def test_a_fingerprint_changes_with_every_file(tmp_path):
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "a.bin"
    file.write_bytes(b"1")

    def fingerprint():
        return Checkpoint("m", tmp_path).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    file.write_bytes(b"2")
    assert fingerprint() != before


def test_an_input_error_while_reading_a_file_names_the_file_of_the_model(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    (tmp_path / "a.bin").write_bytes(b"1")
    monkeypatch.setattr(content, "digest", fail)
    with pytest.raises(CheckpointError) as caught:
        _ = Checkpoint("m", tmp_path).fingerprint
    assert str(caught.value) == "a file of model 'm' cannot be read: Input/output error"
