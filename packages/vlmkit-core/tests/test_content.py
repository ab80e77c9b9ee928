"""Fingerprints depend on the content of files, and large files are read only once."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.kit import content, user_cache
from vlmkit.kit.checkpoint import Checkpoint

PROGRAM = """
import sys
from pathlib import Path
from vlmkit.kit import content
content.SETTLED_NS, content.LEAST_BYTES = 0, 1
for _ in range(20):
    print(sorted(content.digests(Path(sys.argv[1])).items()))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Cache digests immediately and for files of any size, in a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    monkeypatch.setattr(content, "LEAST_BYTES", 1)
    return user_cache.folder() / "digests"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model/sub").mkdir(parents=True)
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/sub/weights.safetensors").write_bytes(b"one weight")
    return tmp_path / "model"


@pytest.fixture
def read(monkeypatch):
    """Record the names of files that are read."""
    names = []
    original = content.digest

    def recording(path):
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(content, "digest", recording)
    return names


def fingerprint(folder):
    return Checkpoint("m", folder).fingerprint


def rewrite(path, data, *, keeps_times=True):
    """Overwrite a file in place, and keep its times on request."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    if keeps_times:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_fingerprints_of_different_content_differ_despite_equal_names_and_times(folder):
    before = fingerprint(folder)
    rewrite(folder / "sub/weights.safetensors", b"ten weights"[:10])
    assert fingerprint(folder) != before


def test_a_fingerprint_ignores_times_and_the_folder(folder, tmp_path):
    before = fingerprint(folder)
    os.utime(folder / "config.json", ns=(1, 1))
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(moved) == before


def test_a_fingerprint_depends_on_names_but_not_on_notes_of_downloads(folder):
    before = fingerprint(folder)
    for hidden in (".cache/huggingface", ".git"):
        (folder / hidden).mkdir(parents=True)
        (folder / hidden / "notes").write_text("now")
    (folder / ".gitattributes").write_text("*")
    assert fingerprint(folder) == before
    (folder / "config.json").rename(folder / "other.json")
    assert fingerprint(folder) != before


def test_a_file_that_was_hashed_is_not_read_again(folder, read):
    before = fingerprint(folder)
    assert sorted(read) == ["config.json", "weights.safetensors"]
    read.clear()
    assert fingerprint(folder) == before
    assert read == []
    (folder / "new.json").write_text("[]")
    rewrite(folder / "sub/weights.safetensors", b"two weight")
    assert fingerprint(folder) != before
    assert sorted(read) == ["new.json", "weights.safetensors"]


def test_a_file_that_just_changed_is_not_remembered(folder, read, monkeypatch):
    monkeypatch.setattr(content, "SETTLED_NS", 3600 * 10**9)
    fingerprint(folder)
    fingerprint(folder)
    assert len(read) == 4


def test_a_file_that_changed_while_it_was_read_is_not_remembered(folder, monkeypatch):
    original = content.digest

    def digest_then_change(path):
        made = original(path)
        rewrite(path, b"new weight")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(content, "digest", digest_then_change)
        before = fingerprint(folder)
    assert fingerprint(folder) != before


def test_small_files_are_not_remembered(folder, cache, monkeypatch):
    monkeypatch.setattr(content, "LEAST_BYTES", 2**20)
    fingerprint(folder)
    assert not cache.exists()


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\xff\xfe", b"[" * 9999, b"{", b"[]", b'{"config.json": 1}', b'{"a": [[1, 2], "x"]}'],
)
def test_a_broken_cache_file_only_costs_time(folder, cache, read, damaged):
    before = fingerprint(folder)
    (record,) = cache.iterdir()
    record.write_bytes(damaged)
    assert fingerprint(folder) == before
    assert len(read) == 4
    read.clear()
    assert fingerprint(folder) == before
    assert read == []


def test_a_cache_that_cannot_be_written_only_costs_time(folder, cache, read):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where a folder should be")
    assert fingerprint(folder) == fingerprint(folder)
    assert len(read) == 4


def test_a_user_without_a_home_has_no_cache(folder, read, monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(content.Path, "home", fail)
    assert fingerprint(folder) == fingerprint(folder)
    assert len(read) == 4


def test_concurrent_processes_agree_and_leave_a_valid_cache(folder, cache, read):
    (folder / "large.bin").write_bytes(bytes(2**23))
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    output = {line for process in started for line in process.communicate()[0].splitlines()}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert output == {str(sorted(content.digests(folder).items()))}
    assert read == []
    assert len(list(cache.iterdir())) == 1


@settings(max_examples=40)
@given(data=st.binary(max_size=40), index=st.integers(0, 39), piece=st.integers(1, 41))
def test_a_digest_depends_on_every_byte_and_its_position(tmp_path_factory, data, index, piece):
    path = tmp_path_factory.mktemp("digest") / "file"

    def digest(data):
        path.write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(content, "PIECE_BYTES", piece)
            return content.digest(path)

    original = digest(data)
    assert digest(data + b"\0") != original
    turned = data[piece:] + data[:piece]
    assert (digest(turned) == original) == (turned == data)
    if index < len(data):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        assert digest(changed) != original


def test_a_large_file_is_read_by_several_threads(folder, monkeypatch):
    monkeypatch.setattr(content, "PIECE_BYTES", 4)
    monkeypatch.setattr(content.os, "cpu_count", lambda: 2)
    barrier = threading.Barrier(2, timeout=300)
    read_piece = content._piece

    def waiting_piece(path, start):
        barrier.wait()
        return read_piece(path, start)

    (folder / "pair").write_bytes(b"12345678")
    expected = content.digest(folder / "pair")
    monkeypatch.setattr(content, "_piece", waiting_piece)
    assert content.digest(folder / "pair") == expected


@pytest.mark.posix
def test_an_unreadable_file_is_ignored(folder, monkeypatch):
    before = fingerprint(folder)
    (folder / "secret").write_text("x")
    original = content.digest

    def failing(path):
        if path.name == "secret":
            raise PermissionError
        return original(path)

    monkeypatch.setattr(content, "digest", failing)
    assert fingerprint(folder) != before
