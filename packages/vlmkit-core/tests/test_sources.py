"""Model sources: schemes and their owners, packaged models, and checks before a download."""

import importlib.resources
import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

import vlmkit
from vlmkit.assembly.load import assemble, chosen
from vlmkit.assembly.sources import (
    find,
    inspected,
    name_of,
    packaged_models,
    remove,
    resolve,
    resolve_local,
)
from vlmkit.cli.doctor import verdicts
from vlmkit.config import Component, Config, ModelEntry, read_layers
from vlmkit.errors import CheckpointError, PluginError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import model_uri, scheme_of, shown, without_secrets
from vlmkit.plugins import loader
from vlmkit.plugins.kinds import KINDS, Kind
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import Registry

STORE = """
from pathlib import Path
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)

def build(context):
    if "broken" in context.reference:
        raise OSError(f"no answer from {context.reference}")
    if "lost" in context.reference:
        raise CheckpointError(f"nothing at {context.reference}", hint=f"see {context.reference}")
    folder = Path(__file__).parent / "fetched"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "mock"}')
    return Checkpoint("tiny", folder, context.revision)

@hookimpl
def vlmkit_register_models(registry):
    registry.add("SOURCE", build, schemes=("store", "s3"), list_models=lambda: ["store://team/tiny"])
"""


def store(folder: Path, name: str = "store", **replaced: str) -> Path:
    text = STORE.replace("SOURCE", name)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def with_store(folder: Path, **replaced: str) -> loader.Plugins:
    plugins = loader.load(entry_points=[], files=[store(folder, **replaced)])
    assert not plugins.broken
    return plugins


# Schemes.


@pytest.mark.parametrize("reference", ["store://team/tiny", "STORE://team/tiny", "s3://b/a/c/tiny"])
def test_the_owner_of_a_scheme_takes_precedence_over_folders(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store:" / "team" / "tiny").mkdir(parents=True)
    found = resolve(reference, with_store(tmp_path), "v2")
    assert found == Checkpoint("tiny", tmp_path / "fetched", "v2")


def test_two_owners_of_one_scheme_are_both_named(tmp_path: Path) -> None:
    files = [store(tmp_path), store(tmp_path, "other")]
    plugins = loader.load(entry_points=[], files=files)
    (error,) = plugins.broken.values()
    assert str(error) == (
        f"model 'other' from {str(files[1])!r} owns the scheme 's3', which 'store' from "
        f"{str(files[0])!r} owns already"
    )


def test_an_unknown_scheme_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    plugins = with_store(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        resolve("shop://team/tiny", plugins)
    assert str(caught.value) == "no installed plugin has models that begin with 'shop://'"
    file = tmp_path / "store.py"
    assert caught.value.hint == f"there are: store:// ({file}), s3:// ({file})"
    with pytest.raises(CheckpointError) as caught:
        resolve("shop://team/tiny", loader.load(entry_points=[]))
    assert caught.value.hint == "none has models of any scheme"


def test_a_source_of_schemes_provides_no_other_names(tmp_path: Path) -> None:
    plugins = with_store(tmp_path)
    assert packaged_models(plugins) == []
    for reference in ("store", "team/tiny"):
        with pytest.raises(CheckpointError, match="is not a packaged name, a folder or a hub id"):
            find(reference, plugins)


def test_a_source_can_provide_hub_ids_besides_its_schemes(tmp_path: Path) -> None:
    added = {'schemes=("store", "s3")': 'schemes=("store",), cannot_serve=lambda r: None'}
    plugins = with_store(tmp_path, **added)
    assert resolve("team/tiny", plugins).name == "tiny"
    with pytest.raises(CheckpointError, match="'s3://'"):
        resolve("s3://team/tiny", plugins)


@pytest.mark.parametrize(
    "schemes",
    ["('Store',)", "('s',)", "('s:',)", "('',)", "'store'", "('st ore',)", "(7,)", "None"],
)
def test_a_scheme_has_at_least_two_lower_case_letters(schemes: str, tmp_path: Path) -> None:
    file = store(tmp_path, **{'schemes=("store", "s3")': f"schemes={schemes}"})
    (error,) = loader.load(entry_points=[], files=[file]).broken.values()
    assert str(error).startswith("model 'store' must be given a tuple of schemes in lower case")


def test_only_models_and_runners_have_schemes(tmp_path: Path) -> None:
    file = store(tmp_path, vlmkit_register_models="vlmkit_register_engines")
    (error,) = loader.load(entry_points=[], files=[file]).broken.values()
    assert str(error) == "engine 'store' cannot own schemes, which models and runners have"


def test_a_refusal_of_a_source_is_reported_with_its_reason(tmp_path: Path) -> None:
    plugins = with_store(
        tmp_path,
        **{'schemes=("store", "s3")': 'schemes=("s3",), cannot_serve=lambda r: "shut: "+r'},
    )
    with pytest.raises(CheckpointError) as caught:
        find("s3://me:hush@b/tiny?key=hush", plugins)
    assert str(caught.value) == (
        f"model 's3://***@b/tiny' cannot be had of 'store' from {str(tmp_path / 'store.py')!r}: "
        "shut: s3://***@b/tiny"
    )


def test_local_lookup_finds_only_models_that_a_source_lists(tmp_path: Path) -> None:
    plugins = with_store(tmp_path)
    assert resolve_local("store://team/tiny", plugins).name == "tiny"
    with pytest.raises(CheckpointError) as caught:
        resolve_local("store://me:hush@team/other?key=hush", plugins)
    assert str(caught.value) == "model 'store://***@team/other' is not on this disk"
    assert caught.value.hint == "vlmkit models pull store://***@team/other"


def test_a_source_whose_list_fails_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = with_store(tmp_path, **{'lambda: ["store://team/tiny"]': "lambda: 1 // 0"})
    with pytest.raises(CheckpointError, match="is not on this disk"):
        resolve_local("store://team/tiny", plugins)
    assert "the list of 'store' failed" in caplog.text


@pytest.mark.parametrize("what", ["broken", "lost"])
def test_no_secret_of_a_reference_is_reported_or_logged(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises((PluginError, CheckpointError)) as caught:
        resolve(f"s3://me:hush@bucket/{what}?token=hush#hush", with_store(tmp_path))
    error = caught.value
    shown_text = f"{error} {error.hint} {error.__notes__} {error.__cause__} {caplog.text}"
    assert "hush" not in shown_text
    assert f"s3://***@bucket/{what}" in shown_text


def test_secrets_of_configured_models_are_not_shown() -> None:
    uri, models = "s3://me:hush@bucket/tiny?token=hush", ["s3://me:hush@bucket/a", {"model": "b"}]
    config = read_layers(environ={}, arguments={"model": uri}).read()
    settings = {setting.path: setting.shown for setting in config.settings()}
    assert settings["model"] == "s3://***@bucket/tiny"
    several = {"models": [{"model": m} if isinstance(m, str) else m for m in models]}
    layered = read_layers(environ={}, arguments=several).read()
    assert "hush" not in str([setting.shown for setting in layered.settings()])
    assert layered.config.entries()[0].names == ("s3://***@bucket/a",)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("store://team/tiny", "tiny"),
        ("store://team/tiny/", "tiny"),
        ("store://tiny", "tiny"),
        ("s3://me:hush@tiny", "tiny"),
        ("s3://me@b/models/caf%C3%A9%20au%20lait?x=1#y", "café au lait"),
    ],
)
def test_a_model_is_named_by_the_last_part_of_its_uri(reference: str, name: str) -> None:
    assert name_of(ModelEntry(model=reference)) == name
    assert name_of(ModelEntry(model=reference, name="other")) == "other"


@pytest.mark.parametrize(
    "reference",
    [
        "store://",
        "store://?x",
        "store:///",
        "store://team/..",
        "store://team/%2e%2E/x",
        "store://./x",
        "store://team/a%2Fb",
        "store://team/a%5cb",
        "store://team/a%00",
        "store://team/%0a",
        "store://team/%zz",
        "store://team/%",
        "store://team/%ff",
        "store://team/ti ny",
        "store://team/tiny\n",
        "store://team/café",
        "store://team\\tiny",
        "store://" + "a" * 2100,
    ],
)
def test_unsafe_references_are_no_uris(reference: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(reference, with_store(tmp_path))
    assert str(caught.value).startswith("the reference of a model that begins with 'store://' ")


@pytest.mark.parametrize("path", ["c:\\models\\x", "c://models", "owner/name", "./a", "/a://b", ""])
def test_paths_and_ids_are_no_uris(path: str) -> None:
    assert model_uri(path) is None
    assert scheme_of(path) is None
    assert shown(path) == path


@given(user=st.text("ab:%", max_size=5), query=st.text("xyz=&?#/", max_size=8))
@example(user="", query="")
def test_a_shown_reference_has_neither_user_nor_query(user: str, query: str) -> None:
    reference = f"s3://{user}@host/path?{query}"
    assert shown(reference) == f"s3://{'***' if user else ''}@host/path"
    assert without_secrets(f"no {reference}!", reference).endswith("!")


def test_a_model_of_a_scheme_answers_under_its_name(tmp_path: Path) -> None:
    file = store(tmp_path)
    with vlmkit.load("store://team/tiny", plugins={"files": [str(file)]}) as model:
        assert model.generate("hello").text == "hello"
        assert model.facts.name == "tiny"


# Packaged models.


def registry_of_models() -> Registry[Checkpoint]:
    return Registries("dist").models  # type: ignore[no-any-return]


def plugins_with(registry: Registry[Checkpoint]) -> loader.Plugins:
    plugins = loader.load(entry_points=[])
    plugins.of(next(kind for kind in KINDS if kind.name == "model")).merge(registry)
    return plugins


@pytest.mark.parametrize("as_", [Path, str])
def test_a_packaged_model_needs_one_line(as_: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    registry = registry_of_models()
    registry.add_packaged("small", as_(tmp_path), description="a small one")
    plugins = plugins_with(registry)
    assert resolve("small", plugins) == Checkpoint("small", tmp_path)
    assert packaged_models(plugins) == ["small"]
    with pytest.raises(CheckpointError, match="is not a packaged name"):
        resolve("large", plugins)


def test_a_packaged_model_can_be_a_resource_of_its_package() -> None:
    registry = registry_of_models()
    registry.add_packaged("small", importlib.resources.files("vlmkit_mock") / "model")
    assert resolve("small", plugins_with(registry)).model_type == "mock"


def test_a_packaged_model_without_its_files_is_reported(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("model/config.json", "{}")
    registry = registry_of_models()
    registry.add_packaged("zipped", zipfile.Path(tmp_path / "a.zip", "model/"))
    registry.add_packaged("lost", tmp_path / "lost")
    registry.add_packaged("empty", tmp_path)
    plugins = plugins_with(registry)
    for name, problem in {
        "zipped": "'zipped' of 'dist' lies in an archive",
        "lost": "'lost' of 'dist' lacks its folder",
        "empty": "it has no config.json",
    }.items():
        with pytest.raises(CheckpointError, match=problem):
            resolve(name, plugins)


def test_a_packaged_model_has_an_absolute_folder() -> None:
    registry = registry_of_models()
    with pytest.raises(PluginError) as caught:
        registry.add_packaged("small", "model")
    assert str(caught.value) == "model 'small' has the folder 'model', which is not absolute"
    with pytest.raises(PluginError, match="not a value of type 'int'"):
        registry.add_packaged("small", 7)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="engine 'small' is no model"):
        Registries("dist").engines.add_packaged("small", "/model")


# Providers without cannot_serve.


def test_a_model_provider_without_cannot_serve_provides_only_its_own_name(tmp_path: Path) -> None:
    registry = registry_of_models()
    registry.add("mine", lambda _: Checkpoint("mine", tmp_path))
    plugins = plugins_with(registry)
    assert resolve("mine", plugins).name == "mine"
    with pytest.raises(CheckpointError, match="is not a packaged name"):
        resolve("somebody/something", plugins)


NAMED = ("tokenizer", "media_encoder", "engine", "runner")


@pytest.mark.parametrize("kind", [k for k in KINDS if k.mode == "one"], ids=lambda k: str(k.name))
def test_auto_skips_providers_without_cannot_serve_only_for_kinds_that_need_it(
    kind: Kind[Any],
) -> None:
    registry = Registries("dist").of(kind)
    registry.add("quiet", lambda _: None)
    assert registry.choose("quiet", "model").name == "quiet"
    if kind.name not in NAMED:
        assert registry.choose("auto", "model").name == "quiet"
        return
    with pytest.raises(PluginUnavailable) as caught:
        registry.choose("auto", "model")
    assert "it does not say which models it serves" in str(caught.value)
    assert caught.value.hint == 'use = "quiet" names it; its author can state cannot_serve'


def test_an_engine_named_in_the_config_also_selects_its_encoder(tmp_path: Path) -> None:
    file = tmp_path / "quiet.py"
    file.write_text(
        "from vlmkit.plugins.hookspecs import hookimpl\nVLMKIT_API = 1\n"
        "@hookimpl\ndef vlmkit_register_engines(registry):\n    registry.add('quiet', print)\n"
        "@hookimpl\ndef vlmkit_register_media_encoders(registry):\n"
        "    registry.add('quiet', print)\n"
    )
    plugins = loader.load(entry_points=[], files=[file])
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}}))
    checkpoint = Checkpoint("m", tmp_path)
    config = Config(engine=Component(use="quiet"))
    assert chosen("media_encoder", config, plugins, checkpoint).name == "quiet"
    shown_text = {v["component"]: v for v in verdicts(checkpoint, config, plugins)}
    assert shown_text["engine"]["is_chosen"]
    assert shown_text["media_encoder"]["is_chosen"]
    with pytest.raises(PluginUnavailable):
        assemble(ModelEntry(model=str(tmp_path)), Config(), plugins)


# Before weights are fetched.

SHOWN = """
import tempfile
from pathlib import Path
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)
HERE = Path(__file__).parent

def previews(context):
    if "broken" in context.reference:
        raise OSError("no answer")
    if "odd" in context.reference:
        yield "a folder"
    if (HERE / "fetched").exists() and not context.is_update:
        return
    with tempfile.TemporaryDirectory(dir=HERE, prefix="preview-") as place:
        for config in CONFIGS:
            (Path(place) / "config.json").write_text(config)
            yield Checkpoint(context.reference, Path(place), is_preview=True)

CONFIGS = ('{"model_type": "first"}', '{"model_type": "last"}')

def build(context):
    (HERE / "fetched").mkdir(exist_ok=True)
    (HERE / "fetched" / "config.json").write_text('{"model_type": "whole"}')
    return Checkpoint(context.reference, HERE / "fetched")

@hookimpl
def vlmkit_register_models(registry):
    registry.add("shown", build, schemes=("shown",), list_models=list, previews=previews)
"""


def with_previews(folder: Path, **replaced: str) -> loader.Plugins:
    text = SHOWN
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    file = folder / "shown.py"
    file.write_text(text)
    return loader.load(entry_points=[], files=[file])


def refusing_check(family: str, seen: list[str]) -> Any:
    def check(checkpoint: Checkpoint) -> None:
        assert checkpoint.is_preview
        seen.append(checkpoint.model_type)
        if checkpoint.model_type == family:
            raise PluginUnavailable(f"no engine for {family}")

    return check


@pytest.mark.parametrize(
    ("family", "expected"), [("first", ["first"]), ("last", ["first", "last"])]
)
def test_a_refused_model_is_not_fetched(family: str, expected: list[str], tmp_path: Path) -> None:
    seen: list[str] = []
    with pytest.raises(PluginUnavailable, match=f"no engine for {family}"):
        resolve("shown://m", with_previews(tmp_path), check=refusing_check(family, seen))

    assert seen == expected
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set()  # Python writes __pycache__ beside the plugin


def test_a_model_is_checked_once_before_it_is_fetched(tmp_path: Path) -> None:
    plugins, seen = with_previews(tmp_path), list[str]()
    assert resolve("shown://m", plugins, check=refusing_check("", seen)).model_type == "whole"
    assert seen == ["first", "last"]
    assert resolve("shown://m", plugins, check=refusing_check("", seen)).model_type == "whole"
    assert seen == ["first", "last"]
    resolve("shown://m", plugins, check=refusing_check("", seen), is_update=True)
    assert seen == ["first", "last"] * 2


@pytest.mark.parametrize("made", ["iter(())", "[]"])
def test_previews_may_be_an_iterator_that_cannot_be_closed(made: str, tmp_path: Path) -> None:
    plugins = with_previews(tmp_path, **{"previews=previews": f"previews=lambda context: {made}"})
    assert resolve("shown://m", plugins, check=refusing_check("", [])).model_type == "whole"


@pytest.mark.parametrize(("family", "shown"), [("first", "first"), ("", "last")])
def test_a_model_is_inspected_by_its_previews(family: str, shown: str, tmp_path: Path) -> None:
    plugins = with_previews(tmp_path)
    folders: list[Path] = []

    def inspect(checkpoint: Checkpoint) -> str:
        assert checkpoint.is_preview
        folders.append(checkpoint.path)
        return json.loads((checkpoint.path / "config.json").read_text())["model_type"]

    found = inspected("shown://m", plugins, inspect=inspect, is_final=lambda found: found == family)
    assert found == shown
    assert not any(folder.exists() for folder in folders)
    assert not (tmp_path / "fetched").exists()

    resolve("shown://m", plugins)
    with pytest.raises(CheckpointError, match="is not on this disk"):  # the source lists no models
        inspected("shown://m", plugins, inspect=inspect, is_final=bool)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("shown://broken", "could not be built: OSError: no answer"),
        ("shown://odd", "was built as 'str'"),
    ],
)
def test_errors_of_previews_name_their_plugin(reference: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        resolve(reference, with_previews(tmp_path), check=refusing_check("", []))
    assert problem in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_preview_with_impossible_values_is_refused(tmp_path: Path) -> None:
    wrong = {'"model_type": "first"': '"vocab_size": -4'}
    with pytest.raises(CheckpointError, match="'vocab_size' is -4"):
        resolve("shown://m", with_previews(tmp_path, **wrong), check=refusing_check("", []))


def test_a_source_that_cannot_remove_models_says_so(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"model 'shown' from .* cannot remove models"):
        remove("shown://m", with_previews(tmp_path))
