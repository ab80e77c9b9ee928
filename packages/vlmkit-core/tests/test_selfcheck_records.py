"""Records of passed self-checks are found only if nothing changed."""

from pathlib import Path

import pytest

from vlmkit.kit import content, selfcheck_records


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    return made


def found_record(folder: Path, fact: str = "one") -> str | None:
    return selfcheck_records.read(selfcheck_records.record_path(folder, "trials", [fact]))


def test_a_record_is_found_only_for_the_same_files_kind_and_facts(folder: Path) -> None:
    assert found_record(folder) is None
    selfcheck_records.write(selfcheck_records.record_path(folder, "trials", ["one"]), "passed")

    assert found_record(folder) == "passed"
    assert found_record(folder, "another") is None
    (folder / "config.json").write_text("[]")
    assert found_record(folder) is None


def test_a_folder_that_just_changed_has_no_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "SETTLED_NS", 10**12)
    assert selfcheck_records.record_path(folder, "trials", []) is None
    selfcheck_records.write(None, "passed")

    assert selfcheck_records.read(None) is None


def test_a_record_that_cannot_be_written_or_read_raises_no_error(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    note = selfcheck_records.record_path(folder, "trials", ["one"])
    selfcheck_records.write(note, "passed")

    assert note is not None
    assert found_record(folder) is None


def test_a_record_is_read_up_to_its_maximum_size(folder: Path) -> None:
    note = selfcheck_records.record_path(folder, "trials", ["one"])
    selfcheck_records.write(note, "x" * (selfcheck_records.MAX_BYTES + 1))

    assert len(found_record(folder) or "") == selfcheck_records.MAX_BYTES


def test_another_processor_has_another_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = selfcheck_records.record_path(folder, "trials", [])
    (tmp_path / "cpuinfo").write_text("flags : avx2\ncpu MHz : 1\n\nflags : avx2\n")
    monkeypatch.setattr(selfcheck_records, "PROCESSOR", tmp_path / "cpuinfo")
    two = selfcheck_records.record_path(folder, "trials", [])
    (tmp_path / "cpuinfo").write_text("flags : avx2\ncpu MHz : 2\n")
    assert selfcheck_records.record_path(folder, "trials", []) == two
    (tmp_path / "cpuinfo").unlink()

    assert len({one, two, selfcheck_records.record_path(folder, "trials", [])}) == 3


def test_a_record_that_cannot_be_replaced_leaves_no_temporary_file(folder: Path) -> None:
    note = selfcheck_records.record_path(folder, "trials", ["one"])
    assert note is not None
    note.mkdir(parents=True)
    selfcheck_records.write(note, "passed")

    assert list(note.parent.iterdir()) == [note]
