"""Models in a single file: suffixes and their owners, references, and rejections."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import vlmkit
from vlmkit.assembly.load import assemble
from vlmkit.assembly.sources import find, inspected, remove, resolve, resolve_local
from vlmkit.config import Config, ModelEntry
from vlmkit.config.pipeline_plan import PipelinePlan, pipeline_plan
from vlmkit.errors import CheckpointError, ConfigError, PluginError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.derived_files import derived_folder
from vlmkit.kit.single_file import (
    is_further_piece,
    pieces_of,
    select_file,
    select_projector,
    split_tag,
    suffix_of,
    tag_of,
)
from vlmkit.kit.weight_files import projector_files
from vlmkit.plugins import loader

READER = """
import dataclasses
import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.kit.derived_files import derived_folder
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer

VLMKIT_API = (1, 0)

def read(context):
    content = context.files.file.read_bytes()
    if not content.startswith(b"{"):
        raise CheckpointError(f"{context.files.file.name!r} is broken", hint="fetch it again")
    folder = derived_folder(context.files.file, {"config.json": content})
    return CHANGED

def is_single(checkpoint):
    return None if checkpoint.file is not None else "it runs single files"

@vlmkit.hookimpl
def vlmkit_register_models(registry):
    registry.add("reader", read, suffixes=SUFFIXES)

@vlmkit.hookimpl
def vlmkit_register_engines(registry):
    registry.add("reader", lambda context: MockEngine(), cannot_serve=is_single)

@vlmkit.hookimpl
def vlmkit_register_tokenizers(registry):
    registry.add("reader", lambda context: MockTokenizer(), cannot_serve=is_single)
"""
READ = "dataclasses.replace(context.files, path=folder)"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reader(
    folder: Path, suffixes: str = '(".one",)', name: str = "reader", read: str = READ
) -> Any:
    file = folder / f"{name}.py"
    file.write_text(READER.replace("SUFFIXES", suffixes).replace("CHANGED", read))
    return file


def with_reader(folder: Path, *arguments: str, **named: str) -> loader.Plugins:
    plugins = loader.load(entry_points=[], files=[reader(folder, *arguments, **named)])
    assert not plugins.broken
    return plugins


def single(folder: Path, name: str = "tiny.one", **config: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps({"model_type": "tiny"} | config))
    return file


# Files on this disk.


@pytest.mark.parametrize("name", ["tiny.one", "TINY.ONE", "a.b.one"])
def test_the_owner_of_a_suffix_reads_a_file(tmp_path: Path, name: str) -> None:
    file = single(tmp_path, name)
    checkpoint = resolve(str(file), with_reader(tmp_path))
    assert (checkpoint.name, checkpoint.file, checkpoint.model_type) == (name, file, "tiny")
    assert checkpoint.path != tmp_path
    assert [path.name for path in checkpoint.path.iterdir()] == ["config.json"]


def test_a_single_file_is_loaded_and_answers(tmp_path: Path) -> None:
    plugins = with_reader(tmp_path)
    entry = ModelEntry(model=str(single(tmp_path)))
    with vlmkit.Model(assemble(entry, Config(), plugins)) as model:
        assert model.generate("hello").text == "hello"
        assert model.facts.name == "tiny.one"


def test_the_longest_suffix_owns_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    files = [reader(tmp_path), reader(tmp_path / "x", '(".zip.one",)', "other")]
    plugins = loader.load(entry_points=[], files=files)
    source = find(str(single(tmp_path, "a.zip.one")), plugins)
    assert isinstance(source, Path)
    assert resolve(str(source), plugins).file == source


def test_two_owners_of_a_suffix_are_both_named(tmp_path: Path) -> None:
    files = [reader(tmp_path), reader(tmp_path, '(".two", ".one")', "other")]
    plugins = loader.load(entry_points=[], files=files)
    (error,) = plugins.broken.values()
    assert str(error) == (
        f"model 'reader' from {str(files[1])!r} owns the suffix '.one', which 'reader' from "
        f"{str(files[0])!r} owns already"
    )


@pytest.mark.parametrize("suffixes", ["('one',)", "('.ONE',)", "('.',)", "['.one']", "('.o/e',)"])
def test_a_malformed_suffix_is_refused(tmp_path: Path, suffixes: str) -> None:
    plugins = loader.load(entry_points=[], files=[reader(tmp_path, suffixes)])
    (error,) = plugins.broken.values()
    assert str(error).startswith("model 'reader' must be given a tuple of suffixes in lower case")


def test_only_models_own_suffixes_and_none_owns_schemes_too(tmp_path: Path) -> None:
    from vlmkit.plugins.registries import Registries

    registries = Registries("mine")
    with pytest.raises(PluginError, match="engine 'x' cannot own suffixes, which models have"):
        registries.engines.add("x", lambda _: None, suffixes=(".one",))
    with pytest.raises(PluginError, match="model 'x' owns schemes and suffixes"):
        registries.models.add("x", lambda _: None, suffixes=(".one",), schemes=("store",))


def test_a_file_that_no_plugin_reads_names_what_is_missing(tmp_path: Path) -> None:
    gguf = single(tmp_path, "tiny-Q4_K_M.gguf")
    with pytest.raises(CheckpointError) as caught:
        resolve(str(gguf), loader.load(entry_points=[]))
    assert str(caught.value) == f"{str(gguf)!r} is a GGUF file, which no installed plugin reads"
    assert caught.value.hint.startswith("install a plugin that owns the suffix '.gguf', or name")
    plugins = with_reader(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        resolve(str(gguf), plugins)
    assert caught.value.hint.endswith(f"; installed plugins read .one ({tmp_path / 'reader.py'})")
    with pytest.raises(CheckpointError, match="is a file, and a model is a folder"):
        resolve(str(single(tmp_path, "model.safetensors")), plugins)


def test_a_folder_of_single_files_names_one(tmp_path: Path) -> None:
    (folder := tmp_path / "models").mkdir()
    for name in ("b.one", "a.one", "0.txt"):
        single(folder, name)
    with pytest.raises(CheckpointError, match="holds no model") as caught:
        resolve(str(folder), with_reader(tmp_path))
    assert caught.value.hint == f"name one file: {folder / 'a.one'}"


def test_a_broken_file_is_refused_by_its_reader(tmp_path: Path) -> None:
    plugins = with_reader(tmp_path)
    (file := tmp_path / "bad.one").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"'bad\.one' is broken"):
        resolve(str(file), plugins)


@pytest.mark.parametrize(
    "read",
    [
        "dataclasses.replace(context.files, path=folder, file=None)",
        "dataclasses.replace(context.files, path=folder, name='other')",
    ],
)
def test_a_reader_that_returns_another_file_or_name_is_named(tmp_path: Path, read: str) -> None:
    plugins = with_reader(tmp_path, read=read)
    with pytest.raises(PluginError) as caught:
        resolve(str(single(tmp_path)), plugins)
    assert f"model 'reader' from {str(tmp_path / 'reader.py')!r} read the file" in str(caught.value)


def test_a_reader_is_not_asked_for_other_references(tmp_path: Path) -> None:
    plugins = with_reader(tmp_path)
    for reference in ("reader", "owner/name", "owner/name:Q4", "tiny.one"):
        with pytest.raises(CheckpointError, match="is not a packaged name, a folder or a hub id"):
            find(reference, plugins)


def test_commands_find_a_file_and_remove_none(tmp_path: Path) -> None:
    plugins, file = with_reader(tmp_path), single(tmp_path)
    assert resolve_local(str(file), plugins).file == file
    found = inspected(str(file), plugins, inspect=lambda c: c.model_type, is_final=lambda _: True)
    assert found == "tiny"
    with pytest.raises(CheckpointError, match="is a folder or file that no hub fetched"):
        remove(str(file), plugins)


def test_an_engine_that_reads_no_single_files_says_so(tmp_path: Path) -> None:
    file = reader(tmp_path)
    file.write_text(
        file.read_text()
        .replace('"it runs single', 'None and "')
        .replace("cannot_serve=is_single", "cannot_serve=torch_like")
        + """
from vlmkit.kit import weight_files

def torch_like(checkpoint):
    return weight_files.objection(checkpoint)
"""
    )
    plugins = loader.load(entry_points=[], files=[file])
    with pytest.raises((PluginUnavailable, CheckpointError)) as caught:
        assemble(ModelEntry(model=str(single(tmp_path))), Config(), plugins)
    assert "its weights are in the single file 'tiny.one'" in str(caught.value)


# Checkpoints with a file.


def test_the_fingerprint_changes_with_the_file_and_not_with_its_neighbours(tmp_path: Path) -> None:
    (folder := tmp_path / "config").mkdir()
    (folder / "config.json").write_text("{}")
    file = single(tmp_path)
    checkpoint = Checkpoint("tiny", folder, file=file)
    before = checkpoint.fingerprint
    single(tmp_path, "another.one")
    assert Checkpoint("tiny", folder, file=file).fingerprint == before
    single(tmp_path, layers=2)
    assert Checkpoint("tiny", folder, file=file).fingerprint != before


def test_worker_processes_get_the_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint("tiny", tmp_path, file=single(tmp_path))
    plan = pipeline_plan(ModelEntry(model="x"), Config(), checkpoint, None)
    assert PipelinePlan.from_bytes(plan.to_bytes()).files.checkpoint == checkpoint


def test_a_file_that_is_deleted_before_its_folder_is_derived_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'gone\.one' cannot be read: No such file"):
        derived_folder(tmp_path / "gone.one", {"config.json": b"{}"})


def test_a_derived_folder_is_made_once_for_each_content_of_a_file(tmp_path: Path) -> None:
    file = single(tmp_path)
    one = derived_folder(file, {"config.json": b"{}"})
    (one / "config.json").touch()
    assert derived_folder(file, {"config.json": b"{}"}) == one
    assert derived_folder(file, {"config.json": b"[]"}) != one
    single(tmp_path, layers=2)
    assert derived_folder(file, {"config.json": b"{}"}) != one
    assert {path.name[0] for path in one.parent.iterdir()} != {"."}


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        derived_folder(single(tmp_path), {"config.json": b"{}"})
    shutil.rmtree(tmp_path, ignore_errors=True)


# Tags.

NAMES = [
    *("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "tiny.F16.gguf", "mmproj-tiny-F16.gguf"),
    *("README.md", "old/tiny-Q5_0.gguf", "new-Q8_K.gguf", "newer-Q8_K.gguf"),
    "big-Q6_K-00001-of-00002.gguf",
    "big-Q6_K-00002-of-00002.gguf",
    *("cut-Q2_K-00001-of-00003.gguf", "cut-Q2_K-00003-of-00003.gguf"),
]


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("q8_0", "tiny-Q8_0.gguf"),
        ("K_M", "tiny-Q4_K_M.gguf"),
        ("F16", "tiny.F16.gguf"),
        ("tiny.F16.gguf", "tiny.F16.gguf"),
        ("tiny-Q8_0", "tiny-Q8_0.gguf"),
        ("Q6_K", "big-Q6_K-00001-of-00002.gguf"),
        ("big-Q6_K-00002-of-00002.gguf", "big-Q6_K-00001-of-00002.gguf"),
    ],
)
def test_a_tag_selects_one_file(tag: str, file: str) -> None:
    assert select_file(f"owner/name:{tag}", NAMES, [".gguf"]) == file


@pytest.mark.parametrize(
    ("tag", "problem", "hint"),
    [
        ("Q5_0", "fits no file", "it has big-Q6_K-00001"),
        ("Q8_K", "fits 2 files", "it has new-Q8_K.gguf, newer-Q8_K.gguf"),
        ("Q2_K", "is in 3 pieces, and the repository lacks 'cut-Q2_K-00002", "name another file"),
    ],
)
def test_a_tag_that_selects_not_one_file_is_refused(tag: str, problem: str, hint: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        select_file(f"owner/name:{tag}", NAMES, [".gguf"])
    assert problem in str(caught.value)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("a-00002-of-00002.GGUF", ["a-00001-of-00002.GGUF", "a-00002-of-00002.GGUF"]),
        ("a-00001-of-00001.gguf", ["a-00001-of-00001.gguf"]),
        *(
            (whole, [whole])
            for whole in ("a.gguf", "a-00001-of-00000.gguf", "a-00001-of-99999.gguf")
        ),
        ("a-00001-of-00002.one", ["a-00001-of-00002.one"]),
    ],
)
def test_the_pieces_of_a_file_follow_from_its_name(name: str, pieces: list[str]) -> None:
    assert pieces_of(name) == pieces
    assert is_further_piece(name) is (name != pieces[0])


def test_the_tag_of_a_piece_is_that_of_its_file() -> None:
    assert tag_of("big-Q6_K-00001-of-00002.gguf", [".gguf"]) == "Q6_K"


@pytest.mark.parametrize(
    ("file", "names", "tower"),
    [
        ("m-Q4_K_M.gguf", ["mmproj-m-f16.gguf", "mmproj-m-bf16.gguf"], "mmproj-m-bf16.gguf"),
        ("m-Q4_K_M.gguf", ["m.mmproj-Q8_0.gguf", "m.mmproj-f16.gguf"], "m.mmproj-f16.gguf"),
        ("m-Q4_K_M.gguf", ["m-MMPROJ.gguf", "m-Q8_0.gguf"], "m-MMPROJ.gguf"),
        ("m-Q4_K_M.gguf", ["old/mmproj-f16.gguf", "mmprojector.gguf", "mmproj.bin"], None),
        ("m.one", ["mmproj-f16.gguf"], None),
    ],
)
def test_a_vision_tower_is_selected_by_its_name(
    file: str, names: list[str], tower: str | None
) -> None:
    assert select_projector(file, names) == tower


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_vision_tower_is_the_one_that_the_user_names(is_alone: bool, tmp_path: Path) -> None:
    file = single(tmp_path, "tiny.gguf")
    for name in ("mmproj-F16.gguf", "mmproj-F32.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    if not is_alone:
        (tmp_path / "config.json").write_text("{}")
    reference = str(file if is_alone else tmp_path)
    plugins = with_reader(tmp_path, suffixes='(".gguf",)')
    found = resolve(reference, plugins, projector="mmproj-F32.gguf")
    assert projector_files(found) == [tmp_path / "mmproj-F32.gguf"]
    assert resolve_local(reference, plugins, projector="mmproj-F32.gguf") == found
    other = resolve(reference, plugins, projector="mmproj-F16.gguf")
    assert other.fingerprint != found.fingerprint
    assert len(projector_files(resolve(reference, plugins))) == 2


@pytest.mark.parametrize(
    ("named", "problem", "hint"),
    [
        ("mmproj-F32.gguf", "is not beside 'tiny.gguf'", "there are: mmproj-F16.gguf"),
        ("other/mmproj-F16.gguf", "is not in the folder of 'tiny.gguf'", "put it beside the model"),
        ("..\\mmproj-F16.gguf", "is not in the folder of 'tiny.gguf'", "put it beside the model"),
        ("tiny.gguf", "'tiny.gguf' is the model", "there are: mmproj-F16.gguf"),
        ("", "'' is not beside 'tiny.gguf'", "there are: mmproj-F16.gguf"),
        ("model.safetensors", "is no GGUF file", "there are: mmproj-F16.gguf"),
        ("big-00002-of-00002.gguf", "is a part of another file", "there are: mmproj-F16.gguf"),
        (".mmproj-F16.gguf", "is a hidden file", "there are: mmproj-F16.gguf"),
    ],
)
def test_a_vision_tower_that_is_not_beside_the_model_is_refused(
    named: str, problem: str, hint: str, tmp_path: Path
) -> None:
    file = single(tmp_path, "tiny.gguf")
    others = ("model.safetensors", "big-00002-of-00002.gguf", ".mmproj-F16.gguf")
    for name in ("mmproj-F16.gguf", *others):
        (tmp_path / name).write_bytes(b"GGUF")
    plugins = with_reader(tmp_path, suffixes='(".gguf",)')
    with pytest.raises(CheckpointError) as caught:
        resolve(str(file), plugins, projector=named)
    assert problem in str(caught.value)
    assert str(caught.value.hint) == hint or hint.startswith("put it beside")


def test_the_only_gguf_file_of_a_folder_is_the_model_and_no_vision_tower(tmp_path: Path) -> None:
    single(tmp_path, "tiny.gguf")
    (tmp_path / "config.json").write_text("{}")
    plugins = with_reader(tmp_path, suffixes='(".gguf",)')
    with pytest.raises(CheckpointError, match=r"the projector 'tiny\.gguf' is the model"):
        resolve(str(tmp_path), plugins, projector="tiny.gguf")


def test_only_a_model_in_a_gguf_file_has_a_projector(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is in no GGUF file") as caught:
        resolve(str(single(tmp_path)), with_reader(tmp_path), projector="mmproj-F16.gguf")
    assert caught.value.hint == "leave projector out"
    wrong: Any = 1
    with pytest.raises(ConfigError, match="projector"):
        resolve(str(single(tmp_path)), with_reader(tmp_path), projector=wrong)


def test_a_repository_without_files_of_a_suffix_is_reported() -> None:
    with pytest.raises(CheckpointError, match=r"'owner/name' has no file that ends with \.one"):
        select_file("owner/name:Q4", NAMES, [".one"])


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("owner/name:Q4_K_M", ("owner/name", "Q4_K_M")),
        ("owner/name", ("owner/name", "")),
        ("store://team/tiny:1", ("store://team/tiny:1", "")),
        ("C:\\models\\x", ("C:\\models\\x", "")),
        ("C:/models/x", ("C:/models/x", "")),
        ("owner/name:", ("owner/name:", "")),
        ("owner/name:a/b", ("owner/name:a/b", "")),
        ("owner/name:..", ("owner/name:..", "")),
    ],
)
def test_only_a_hub_id_has_a_tag(reference: str, parts: tuple[str, str]) -> None:
    assert split_tag(reference) == parts


@given(st.lists(st.from_regex(r"[a-z]{1,5}-[A-Z][A-Z0-9_]{0,6}\.gguf", fullmatch=True), max_size=5))
def test_the_tag_of_a_file_selects_it_unless_others_share_it(names: list[str]) -> None:
    for name in set(names):
        tag = tag_of(name, [".gguf"])
        assert suffix_of(name, [".gguf"]) == ".gguf"
        try:
            found = select_file(f"owner/name:{tag}", set(names), [".gguf"])
        except CheckpointError:
            ends = [each for each in set(names) if each.lower().endswith(f"{tag}.gguf".lower())]
            assert len(ends) > 1
        else:
            assert found == name


@given(st.text(max_size=40))
def test_any_text_splits_into_a_repository_and_a_tag(text: str) -> None:
    repository, tag = split_tag(text)
    assert text == (f"{repository}:{tag}" if tag else repository)
