"""Which libraries are taken, what they say of a processor, and where their messages go."""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmkit.errors import ConfigError
from vlmkit_llama import declarations, library
from vlmkit_llama.library import Library, lacks_vnni, open_library, packaged

on_x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="sizes are measured on x86-64"
)


def test_the_packaged_library_is_taken_and_opened_once() -> None:
    assert open_library("") is open_library("")
    assert open_library("").features


def test_the_tested_version_is_the_installed_one() -> None:
    import importlib.metadata

    assert importlib.metadata.version("xllamacpp") in declarations.TESTED


def test_a_library_of_the_users_own_is_opened_by_its_file(tmp_path: Path) -> None:
    """Here, that of the package under the name that a build of llama.cpp has."""
    own = tmp_path / "libllama.so"
    shutil.copy(packaged(), own)
    first = open_library("")
    try:
        assert open_library(str(own)).features == first.features
    finally:
        first.functions.llama_log_set(first._callback, None)


@pytest.mark.parametrize("name", ["MODEL_DEFAULTS", "CONTEXT_DEFAULTS"])
def test_a_library_with_another_default_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, value = next(iter(getattr(declarations, name).items()))
    monkeypatch.setitem(getattr(declarations, name), field, value + 1)
    with pytest.raises(ConfigError, match=f"its default of {field} is {value}, not {value + 1}"):
        Library(packaged())


@pytest.fixture
def another() -> Iterator[Library]:
    """Yield a library that was opened again; then the first one gets its messages again."""
    first = open_library("")
    media = first.media
    yield Library(packaged())
    first.functions.llama_log_set(first._callback, None)
    media.mtmd_log_set(first._callback, None)


def test_a_library_with_another_default_for_images_is_refused(
    another: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(declarations.MEDIA_DEFAULTS, "batch_max_tokens", 1)
    with pytest.raises(ConfigError, match="its default of batch_max_tokens is 1024, not 1"):
        _ = another.media


@on_x86
def test_a_library_with_a_longer_structure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shorter(ctypes.Structure):
        _fields_ = declarations.ContextParams._fields_[:-1]

    monkeypatch.setattr(declarations, "ContextParams", Shorter)
    with pytest.raises(ConfigError, match="context_default_params writes 168 bytes, not 160"):
        Library(packaged())


@on_x86
def test_a_library_with_longer_parameters_of_images_is_refused(
    another: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shorter(ctypes.Structure):
        _fields_ = declarations.MediaParams._fields_[:-1]

    monkeypatch.setattr(library, "MEDIA_PARAMS", (Shorter, declarations.MEDIA_DEFAULTS))
    with pytest.raises(ConfigError, match="mtmd_context_params_default writes 96 bytes, not 88"):
        _ = another.media


def test_a_build_without_images_needs_the_library_for_them(
    another: Library, tmp_path: Path
) -> None:
    """A build of llama.cpp has two libraries, side by side."""
    another._path = tmp_path / "libllama.so"
    another.functions = ctypes.CDLL(None)
    with pytest.raises(ConfigError, match=r"'libmtmd.so' cannot be opened") as refused:
        _ = another.media
    assert "target mtmd" in refused.value.hint


@pytest.mark.parametrize("is_library", [True, False])
def test_a_file_that_is_no_such_library_is_refused_by_name(
    is_library: bool, tmp_path: Path
) -> None:
    other = tmp_path / "other.so"
    if is_library:
        import _ctypes

        shutil.copy(_ctypes.__file__, other)
        problem = "it lacks a function"
    else:
        other.write_bytes(b"no library")
        problem = "cannot be opened"
    with pytest.raises(ConfigError, match=f"'other.so' .*{problem}"):
        Library(other)


def test_an_absent_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PACKAGE", "xllamacpp_absent")
    with pytest.raises(ConfigError, match="not installed") as refused:
        packaged()
    assert "vlmkit-llama[cpu]" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("features", "lacks"), [(("AVX2",), True), (("AVX2", "AVX512_VNNI"), False)]
)
def test_products_that_a_build_does_not_use_are_noticed(
    features: tuple[str, ...], lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "flags: avx2 avx512_vnni")
    assert lacks_vnni(features) is lacks
    monkeypatch.setattr(Path, "read_text", lambda _: "flags: avx2")
    assert not lacks_vnni(features)


def test_messages_of_the_library_go_to_the_log_and_not_to_the_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    opened = open_library("")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(60))
    with caplog.at_level(logging.DEBUG, "vlmkit_llama"):
        params: Any = opened.functions.llama_model_default_params()
        assert not opened.functions.llama_model_load_from_file(os.fsencode(bad), params)
    assert any("gguf" in record.getMessage() for record in caplog.records)
    assert opened.errors
    assert capfd.readouterr() == ("", "")


@pytest.mark.posix
def test_an_abort_of_the_library_ends_its_process_without_a_debugger() -> None:
    """The library would start one and trace for half a minute."""
    script = (
        "from vlmkit_llama.library import open_library\n"
        "functions = open_library('').functions\n"
        "functions.ggml_abort(b'file', 1, b'an assertion')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == -6
    assert "an assertion" in ended.stderr
    assert "gdb" not in ended.stderr
    assert "#0" not in ended.stderr
