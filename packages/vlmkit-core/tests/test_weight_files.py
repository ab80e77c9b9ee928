"""Errors of weight files are found from names, sizes and headers alone."""

import json
from pathlib import Path

import pytest

from vlmkit.errors import PluginUnavailable
from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection, hint_of, with_hint
from vlmkit.plugins.registry import Registry


def file_of(num_bytes: int, *, missing: int = 0) -> bytes:
    """Return a file of one weight, without its last ``missing`` bytes."""
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes - missing)


def objection(folder: Path, **files: bytes) -> str | None:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return weight_files.objection(Checkpoint("m", folder))


def test_complete_files_have_no_objection(tmp_path: Path) -> None:
    assert objection(tmp_path, model_safetensors=file_of(9)) is None


@pytest.mark.parametrize("content", [b"", b"\x02", file_of(9)[:30], b"\xff" * 40, b"a web page..."])
def test_a_file_of_another_format_is_an_objection(content: bytes, tmp_path: Path) -> None:
    assert objection(tmp_path, model_safetensors=content) == (
        "'model.safetensors' is not a safetensors file"
    )


@pytest.mark.parametrize("missing", [1, 9, -1])
def test_a_file_must_have_the_length_that_its_header_states(missing: int, tmp_path: Path) -> None:
    whole = len(file_of(9))
    assert objection(tmp_path, model_safetensors=file_of(9, missing=missing)) == (
        f"'model.safetensors' has {whole - missing} bytes, and should have {whole}"
    )


def test_no_more_of_a_header_is_read_than_the_file_has(tmp_path: Path) -> None:
    content = (99_000_000).to_bytes(8, "little") + b"{}"
    assert "is not a safetensors file" in str(objection(tmp_path, model_safetensors=content))


@pytest.mark.parametrize("file", ["../a.safetensors", "/a.safetensors", "b\\a.safetensors"])
def test_an_index_can_name_only_files_of_its_folder(file: str, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": file}}).encode()
    reason = objection(tmp_path, model_safetensors_index_json=index)

    assert reason is not None
    assert "which is not a file of its folder" in reason


def test_a_hint_of_equal_objections_is_reported_once() -> None:
    registry: Registry[object] = Registry("engine")
    same = Objection("too large", hint="take another")
    for name in ("one", "two"):
        registry.add(name, lambda _: object(), cannot_serve=lambda _: same)
    registry.add("three", lambda _: object(), cannot_serve=lambda _: "no graph")
    with pytest.raises(PluginUnavailable) as caught:
        registry.choose("auto", None)

    assert str(caught.value) == (
        "no installed engine can serve this model (one, two: too large; three: no graph)"
    )
    assert caught.value.hint == "take another"
    with pytest.raises(PluginUnavailable) as caught:
        registry.choose("two", None)
    assert caught.value.hint == "take another"


def test_an_objection_is_a_string_with_a_hint() -> None:
    reason = Objection("it is late", hint="come earlier")

    assert (reason, hint_of(reason), with_hint(reason)) == (
        "it is late",
        "come earlier",
        "it is late; come earlier",
    )
    assert (hint_of("it is late"), with_hint("it is late"), with_hint(None)) == (
        "",
        "it is late",
        None,
    )
    assert type(with_hint(reason)) is str
