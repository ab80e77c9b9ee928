"""From a model's name to a running pipeline, and cleanup after a failed build."""

import asyncio
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import vlmkit
from vlmkit.assembly.load import (
    assemble,
    chosen,
    load_plugins,
    sees,
)
from vlmkit.assembly.sources import name_of, packaged_models, resolve, resolve_local
from vlmkit.checkpoints.generation_config import FIELDS, default_params
from vlmkit.cli.doctor import verdicts
from vlmkit.config import Component, Config, ModelEntry
from vlmkit.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    PluginError,
    PluginUnavailable,
    RequestError,
    UnknownPlugin,
)
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.plugins import loader
from vlmkit.settings.plugins import PluginSettings
from vlmkit.types.sampling import SamplingParams

HEAD = """
from pathlib import Path
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.errors import EngineError
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

VLMKIT_API = 1
LOG = Path(__file__).with_suffix(".log")

def serves_all(checkpoint):
    return None

def note(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")

class Encoder(MockVisionEncoder):
    def close(self):
        note("encoder closed")
        super().close()

class Engine(MockEngine):
    def close(self):
        note("engine closed")
        super().close()

def build_encoder(context):
    note("encoder built")
    return Encoder(MockEncoderSettings())

def build_engine(context):
    note("engine built")
    return Engine(MockEngineSettings())
"""

NOTED = (
    HEAD
    + """
def fail(error):
    def build(context):
        raise error
    return build

class SmallEngine(Engine):
    @property
    def limits(self):
        import dataclasses
        return dataclasses.replace(super().limits, capacity_tokens=1)

class HalfEngine(Engine):
    forward = None

@hookimpl
def vlmkit_register_media_encoders(registry):
    registry.add("noted", build_encoder)

@hookimpl
def vlmkit_register_engines(registry):
    registry.add("noted", build_engine)
    registry.add("failing", fail(EngineError("no memory")))
    registry.add("interrupted", fail(KeyboardInterrupt()))
    registry.add("small", lambda context: SmallEngine(MockEngineSettings()))
    registry.add("half", lambda context: HalfEngine(MockEngineSettings()))
"""
)

TEXT_ONLY = (
    HEAD
    + """
@hookimpl
def vlmkit_register_tokenizers(registry):
    registry.add("plain", lambda context: MockTokenizer(), cannot_serve=serves_all)

@hookimpl
def vlmkit_register_engines(registry):
    registry.add("plain", build_engine, cannot_serve=serves_all)

@hookimpl
def vlmkit_register_media_encoders(registry):
    registry.add("sighted", build_encoder, cannot_serve=lambda c: "the model has no vision tower")
"""
)

HUB = (
    HEAD
    + """
def is_not_ours(reference):
    return None if reference.count("/") == 1 else "a hub id reads owner/name"

def fetch(context):
    folder = Path(__file__).parent / "hub" / context.reference
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return Checkpoint(context.reference, folder, context.revision)

@hookimpl
def vlmkit_register_models(registry):
    registry.add("hub", fetch, cannot_serve=is_not_ours, list_models=lambda: ["own/fetched"])
    registry.add("mirror", fetch, cannot_serve=lambda _: "it has nothing", list_models=list)
"""
)


@pytest.fixture
def mock_entry() -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint("mock", "vlmkit_mock.plugin", "vlmkit")


def plugin_file(folder: Path, text: str) -> Path:
    file = folder / "extra.py"
    file.write_text(text)
    return file


def model_folder(folder: Path, **files: Any) -> Path:
    for name, content in {"config": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


# vlmkit.load.


def test_a_packaged_model_answers() -> None:
    with vlmkit.load("mock") as model:
        assert model.generate("hello").text == "hello"
        assert model.facts.name == "mock"
        assert model.facts.takes_images
    assert not model.runner.is_ready


def test_sections_override_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nmax_sequences = 1\nmax_sequence_tokens = 64\ncapacity_tokens = 96\n")
    monkeypatch.setenv("VLMKIT_ENGINE__MAX_SEQUENCES", "2")
    monkeypatch.setenv("VLMKIT_ENGINE__CAPACITY_TOKENS", "128")
    with vlmkit.load("mock", config=file, engine={"max_sequences": 3}) as model:
        assert model.facts.limits.max_sequences == 3
        assert model.facts.limits.capacity_tokens == 128
        assert model.facts.limits.max_sequence_tokens == 64


def test_a_config_object_is_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLMKIT_ENGINE__MAX_SEQUENCES", "2")
    config = Config(engine=Component(settings={"max_sequences": 5}))
    with vlmkit.load("mock", config=config, pipeline={"max_images": 1}) as model:
        assert model.facts.limits.max_sequences == 5
        assert model.facts.bounds.max_images == 1


def test_a_misspelt_section_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as caught:
        vlmkit.load("mock", engin={"use": "mock"})
    assert caught.value.hint == "did you mean 'engine.use'?"


def test_stages_of_loading_are_reported_in_order() -> None:
    stages: list[str] = []
    vlmkit.load("mock", on_stage=stages.append).close()
    assert stages == [
        "model files",
        "tokenizer",
        "media encoder",
        "engine",
        "scheduler",
        "sampler",
        "ready",
    ]


def test_two_pipelines_of_one_model_share_no_component() -> None:
    with vlmkit.load("mock") as one, vlmkit.load("mock") as two:
        one.close()
        assert two.generate("still here").text == "still here"


# Cleanup after a failed build.


def failed_load_events(folder: Path, **sections: str) -> list[str]:
    """Load with a plugin that fails; return its records of built and closed components."""
    plugin = plugin_file(folder, NOTED)
    chosen = {name: Component(use=use) for name, use in sections.items()}
    config = Config(plugins=PluginSettings(files=(str(plugin),)), **chosen)  # type: ignore[arg-type]
    entry = ModelEntry(model="mock")
    with pytest.raises((EngineError, ConfigError, PluginError, KeyboardInterrupt)):
        assemble(entry, config, load_plugins(config.plugins))
    log = plugin.with_suffix(".log")
    return log.read_text().splitlines() if log.exists() else []


def test_the_encoder_is_closed_if_the_engine_fails_to_build(tmp_path: Path) -> None:
    assert failed_load_events(tmp_path, media_encoder="noted", engine="failing") == [
        "encoder built",
        "encoder closed",
    ]


def test_the_encoder_is_closed_if_the_engine_lacks_a_method(tmp_path: Path) -> None:
    assert failed_load_events(tmp_path, media_encoder="noted", engine="half") == [
        "encoder built",
        "encoder closed",
    ]


def test_the_encoder_is_closed_if_loading_is_interrupted(tmp_path: Path) -> None:
    assert "encoder closed" in failed_load_events(
        tmp_path, media_encoder="noted", engine="interrupted"
    )


def test_components_that_do_not_fit_together_are_closed_in_reverse_order(tmp_path: Path) -> None:
    assert failed_load_events(tmp_path, media_encoder="noted", engine="small") == [
        "encoder built",
        "engine closed",
        "encoder closed",
    ]


def test_a_wrong_setting_of_the_last_component_is_found_before_any_is_built(tmp_path: Path) -> None:
    plugin = plugin_file(tmp_path, NOTED)
    config = Config(
        plugins=PluginSettings(files=(str(plugin),)),
        engine=Component(use="noted"),
        sampler=Component(settings={"heat": 1}),
    )
    with pytest.raises(ConfigError, match="sampler 'array' has no setting 'heat'"):
        assemble(ModelEntry(model="mock"), config, load_plugins(config.plugins))
    assert not plugin.with_suffix(".log").exists()


# Finding the model.


def test_a_folder_is_a_model_with_the_name_of_the_folder(
    tmp_path: Path, mock_entry: importlib.metadata.EntryPoint
) -> None:
    folder = model_folder(tmp_path)
    checkpoint = resolve(str(folder), loader.load(entry_points=[mock_entry]))
    assert (checkpoint.name, checkpoint.path) == (tmp_path.name, folder)


def test_a_folder_without_a_config_is_no_model(
    tmp_path: Path, mock_entry: importlib.metadata.EntryPoint
) -> None:
    with pytest.raises(CheckpointError, match="holds no model"):
        resolve(str(tmp_path), loader.load(entry_points=[mock_entry]))


@pytest.mark.parametrize(
    "reference",
    [
        *("./nowhere", "../nowhere", "/no/where", "/nowhere", "a/b/c", "~no-such-user/a"),
        *("C:\\models\\x", "C:/x", "models\\x", "\\\\server\\x"),
    ],
)
def test_an_absent_path_is_reported_as_no_folder(reference: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        resolve(reference, loader.load(entry_points=[]))


def test_an_unknown_name_is_reported_with_the_nearest_or_with_all(
    mock_entry: importlib.metadata.EntryPoint,
) -> None:
    plugins = loader.load(entry_points=[mock_entry])
    with pytest.raises(CheckpointError) as caught:
        resolve("mok", plugins)
    assert caught.value.hint == "did you mean 'mock'?"
    with pytest.raises(CheckpointError) as caught:
        resolve("somebody/something", plugins)
    assert caught.value.hint == (
        "packaged: mock; for models of the Hugging Face hub: " + install_command("vlmkit-hf")
    )


def test_a_hub_provider_gets_the_reference_and_the_revision(tmp_path: Path) -> None:
    plugins = loader.load(files=[plugin_file(tmp_path, HUB)], entry_points=[])
    checkpoint = resolve("own/model", plugins, "v2")
    assert (checkpoint.name, checkpoint.revision) == ("own/model", "v2")


def test_local_lookup_finds_only_models_on_this_disk(tmp_path: Path) -> None:
    plugins = loader.load(files=[plugin_file(tmp_path, HUB)], entry_points=[])
    assert resolve_local("own/fetched", plugins).name == "own/fetched"
    with pytest.raises(CheckpointError) as caught:
        resolve_local("own/other", plugins)
    assert str(caught.value) == "model 'own/other' is not on this disk"
    assert caught.value.hint == "vlmkit models pull own/other"
    assert not (tmp_path / "hub" / "own" / "other").exists()
    assert packaged_models(plugins) == []


@pytest.mark.parametrize(
    ("model", "name", "called"),
    [
        ("demo", None, "demo"),
        ("demo", "tiny", "tiny"),
        ("owner/name", None, "owner/name"),
        ("/data/models/mine/", None, "mine"),
        ("/data/./models/mine", "other", "other"),
    ],
)
def test_a_model_is_named_by_its_name_or_by_its_reference(
    model: str, name: str | None, called: str
) -> None:
    assert name_of(ModelEntry(model=model, name=name)) == called


# Choosing providers.


def test_a_model_without_a_vision_tower_becomes_a_text_pipeline(tmp_path: Path) -> None:
    plugins = loader.load(files=[plugin_file(tmp_path, TEXT_ONLY)], entry_points=[])
    entry = ModelEntry(model=str(model_folder(tmp_path)))
    with vlmkit.Model(assemble(entry, Config(), plugins)) as model:
        assert not model.facts.takes_images
        assert model.generate("text").text == "text"


def test_a_model_with_a_vision_tower_is_not_loaded_without_an_encoder(tmp_path: Path) -> None:
    plugins = loader.load(files=[plugin_file(tmp_path, TEXT_ONLY)], entry_points=[])
    entry = ModelEntry(model=str(model_folder(tmp_path, config={"vision_config": {}})))
    with pytest.raises(PluginUnavailable, match="no installed media encoder can serve"):
        assemble(entry, Config(), plugins)


TWINS = """
class Encoder:
    identity = "x"
    media_kinds = frozenset({"image"})

def add(registry, name, **options):
    options = {"cannot_serve": serves_all} | options
    registry.add(name, lambda context: Encoder(), **options)

def no_graphs(checkpoint):
    return None if checkpoint.has("*.onnx") else "no graphs"

@hookimpl
def vlmkit_register_media_encoders(registry):
    add(registry, "plain", priority=30)
    add(registry, "graph", priority=-5, cannot_serve=no_graphs)

@hookimpl
def vlmkit_register_tokenizers(registry):
    add(registry, "plain", priority=30)
    add(registry, "graph", priority=-5, cannot_serve=no_graphs)

@hookimpl
def vlmkit_register_engines(registry):
    add(registry, "plain")
    add(registry, "graph", priority=lambda c: 20 if c.has("*.onnx") else -20)
    add(registry, "alone", priority=-1)
"""
STRANGER = """
@hookimpl
def vlmkit_register_media_encoders(registry):
    registry.add("alone", lambda context: None, priority=-30, cannot_serve=serves_all)
"""


@pytest.mark.parametrize(
    ("has_graphs", "sets", "engine", "encoder"),
    [
        (True, {}, "graph", "graph"),
        (False, {}, "plain", "plain"),
        (
            False,
            {"engine": "graph"},
            "graph",
            "plain",
        ),  # the encoder of that name cannot serve this model
        (True, {"engine": "plain"}, "plain", "plain"),
        (
            True,
            {"engine": "alone"},
            "alone",
            "plain",
        ),  # the encoder of that name is from another plugin
        (True, {"media_encoder": "plain"}, "graph", "plain"),
    ],
)
@pytest.mark.parametrize("section", ["media_encoder", "tokenizer"])
def test_an_encoder_and_a_tokenizer_set_to_auto_follow_the_engine(
    section: str,
    has_graphs: bool,
    sets: dict[str, str],
    engine: str,
    encoder: str,
    tmp_path: Path,
) -> None:
    sets = {section if name == "media_encoder" else name: use for name, use in sets.items()}
    (folder := tmp_path / "m").mkdir()
    model_folder(folder, config={"vision_config": {}})
    if has_graphs:
        (folder / "decoder.onnx").touch()
    texts = {"twins": HEAD + TWINS, "stranger": HEAD + STRANGER}
    files = [plugin_file(tmp_path, text).rename(tmp_path / f"{n}.py") for n, text in texts.items()]
    plugins = loader.load(entry_points=[], files=files)
    config = Config(**{name: Component(use=use) for name, use in sets.items()})
    checkpoint = resolve(str(folder), plugins)
    sections = ("engine", section)
    names = [chosen(each, config, plugins, checkpoint).name for each in sections]
    assert names == [engine, encoder]
    rows = [v for v in verdicts(checkpoint, config, plugins) if v["component"] in sections]
    taken = {v["component"]: v["provider"] for v in rows if v["is_chosen"]}
    assert taken == {"engine": engine, section: encoder}
    if encoder == "graph":
        rest = {v["provider"]: v["reason"] for v in rows if v["component"] == section}
        assert rest["plain"] == "able, but the engine's own is taken"


def test_a_model_takes_images_if_a_provider_can_encode_them(
    mock_entry: importlib.metadata.EntryPoint,
) -> None:
    plugins = loader.load(entry_points=[mock_entry])
    assert sees(resolve("mock", plugins), plugins)
    assert not sees(Checkpoint("x", Path("/nowhere")), plugins)


def test_a_missing_provider_is_reported_with_the_plugins_that_failed_to_load(
    tmp_path: Path,
) -> None:
    broken = plugin_file(tmp_path, "raise ImportError('libfast.so is missing')")
    plugins = loader.load(files=[broken], entry_points=[])
    entry = ModelEntry(model=str(model_folder(tmp_path)))
    config = Config(tokenizer=Component(use="fast"))
    with pytest.raises(UnknownPlugin, match=r"could not be loaded: .*libfast\.so is missing"):
        assemble(entry, config, plugins)


def test_a_named_provider_that_cannot_serve_is_reported_without_broken_plugins(
    tmp_path: Path, mock_entry: importlib.metadata.EntryPoint
) -> None:
    broken = plugin_file(tmp_path, "raise ImportError('libfast.so is missing')")
    plugins = loader.load(files=[broken], entry_points=[mock_entry])
    entry = ModelEntry(model=str(model_folder(tmp_path)))
    config = Config(tokenizer=Component(use="mock"))
    with pytest.raises(
        PluginUnavailable, match=r"tokenizer 'mock' from .* cannot be used"
    ) as caught:
        assemble(entry, config, plugins)
    assert "libfast" not in str(caught.value)


def test_a_broken_plugin_file_of_the_config_is_an_error(tmp_path: Path) -> None:
    broken = plugin_file(tmp_path, "1 / 0")
    with pytest.raises(PluginError) as caught:
        load_plugins(PluginSettings(files=(str(broken),)))
    assert str(caught.value) == (
        f"plugin file {str(broken)!r} could not be loaded: ZeroDivisionError: division by zero"
    )
    assert caught.value.hint == "fix it, or remove it from plugins"


def test_a_refused_plugin_file_is_reported_with_a_remedy(tmp_path: Path) -> None:
    unmarked = plugin_file(tmp_path, "VLMKIT_API = 1\ndef vlmkit_register_samplers(registry): ...")
    with pytest.raises(PluginError) as caught:
        load_plugins(PluginSettings(files=(str(unmarked),)))
    assert caught.value.hint == "put @hookimpl above it"


def test_blocked_plugins_register_nothing() -> None:
    plugins = load_plugins(PluginSettings(), environ={"VLMKIT_BLOCK": "nobody, VLMKIT_MOCK"})
    assert "mock" not in packaged_models(plugins)
    assert {p.name for p in plugins.found if p.blocked} == {"mock"}


# Sampling defaults of the checkpoint.


def params_of(folder: Path, **stated: Any) -> SamplingParams:
    return default_params(Checkpoint("m", model_folder(folder, generation_config=stated)))


def test_sampling_is_greedy_by_default_without_do_sample(tmp_path: Path) -> None:
    assert default_params(Checkpoint("m", tmp_path)) == SamplingParams()
    assert params_of(tmp_path, temperature=0.7, top_p=0.5) == SamplingParams()
    assert params_of(tmp_path, do_sample=False, top_k=3) == SamplingParams()


def test_stated_sampling_values_apply_with_do_sample(tmp_path: Path) -> None:
    assert params_of(tmp_path, do_sample=True) == SamplingParams(temperature=1.0)
    stated: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1}
    assert params_of(tmp_path, do_sample=True, **stated) == SamplingParams(**stated)


def test_a_repetition_penalty_also_applies_to_greedy_sampling(tmp_path: Path) -> None:
    assert params_of(tmp_path, repetition_penalty=1.05).repetition_penalty == 1.05


def test_a_value_out_of_bounds_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = params_of(tmp_path, do_sample=True, temperature=9.0, top_p="x", top_k=5)
    assert params == SamplingParams(temperature=1.0, top_k=5)
    assert "temperature" in caplog.text
    assert "top_p" in caplog.text


def test_sampling_defaults_of_the_checkpoint_are_applied(tmp_path: Path) -> None:
    stated: dict[str, Any] = {
        "no_repeat_ngram_size": 3,
        "sequence_bias": [[[5, 6], 1.5]],
        "bad_words_ids": [[1], [2, 3]],
        "suppress_tokens": [4],
        "begin_suppress_tokens": [7],
        "min_new_tokens": 2,
        "min_length": 9,
        "stop_strings": "END",
    }
    ignored = {"typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1}
    followed = SamplingParams(
        no_repeat_ngram_size=3,
        sequence_bias=(((5, 6), 1.5),),
        bad_words_ids=((1,), (2, 3)),
        suppress_tokens=(4,),
        begin_suppress_tokens=(7,),
        min_tokens=2,
        stop=("END",),
    )
    assert params_of(tmp_path, **stated, **ignored) == followed
    sampled = params_of(tmp_path, do_sample=True, **ignored)
    assert sampled == SamplingParams(temperature=1.0, **ignored)
    assert params_of(tmp_path, min_length=9).min_length == 9


def test_an_ignored_value_is_reported_once_and_only_if_it_has_an_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    neutral = {field.name: next(iter(field.neutral)) for field in FIELDS if field.neutral}
    assert params_of(tmp_path, **neutral, use_cache=True, pad_token_id=0) == SamplingParams()
    assert caplog.text == ""
    stated_values = {
        "num_beams": 4,
        "forced_eos_token_id": 2,
        "penalty_alpha": 0.6,
        "max_length": 512,
    }
    assert params_of(tmp_path, **neutral | stated_values) == SamplingParams()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(stated_values)
    for name, value in stated_values.items():
        assert sum(f": {name} = {value} is ignored: " in line for line in lines) == 1


def test_a_default_minimum_is_lowered_to_a_smaller_maximum() -> None:
    defaults = SamplingParams(min_tokens=20)
    assert defaults.replaced({"max_tokens": 5}).min_tokens == 5
    assert defaults.replaced({"max_tokens": 50}).min_tokens == 20
    with pytest.raises(RequestError, match="min_tokens is over max_tokens"):
        defaults.replaced({"max_tokens": 5, "min_tokens": 20})


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in FIELDS]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda values: st.lists(values, max_size=3),
        ),
    )
)
def test_any_generation_config_can_be_read(stated: dict[str, Any]) -> None:
    class StatedCheckpoint(Checkpoint):
        def read_json(self, file: str) -> dict[str, Any]:
            return stated

    default_params(StatedCheckpoint("m", Path())).checked()


# The public package.


def test_the_public_names_are_few_sorted_and_present() -> None:
    assert vlmkit.__all__ == sorted(vlmkit.__all__)
    assert len(vlmkit.__all__) <= 18
    assert set(vlmkit.__all__) <= set(dir(vlmkit))
    for name in vlmkit.__all__:
        assert getattr(vlmkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vlmkit.nothing


def test_the_load_function_is_never_shadowed_by_a_module() -> None:
    code = "import vlmkit, vlmkit.assembly.load, vlmkit.cli; vlmkit.load('mock').close()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, vlmkit; heavy = {'numpy', 'PIL', 'pluggy', 'msgspec', 'asyncio', 'litestar'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_program_of_the_readme_runs() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "Say this back to me.\nAnd this, as it comes."


def test_fetch_returns_the_files_of_a_model_without_building_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLMKIT_ENGINE__USE", "never-asked-for")
    assert vlmkit.fetch("mock").model_type == "mock"
    with pytest.raises(CheckpointError, match="model 'moc' is not a packaged name"):
        vlmkit.fetch("moc")


# Optional components.


def test_a_proposer_is_used_if_the_config_names_one() -> None:
    with vlmkit.load("mock") as plain, vlmkit.load("mock", proposer={"use": "ngram"}) as guessing:
        question = '{"mock": {"text": "again and again and again ", "tokens": 60}}'
        answers = [m.generate(question, max_tokens=60).text for m in (plain, guessing)]
        drafted = [m.stats().counters["num_tokens_drafted"] for m in (plain, guessing)]
    assert answers[0] == answers[1]
    assert drafted[0] == 0 < drafted[1]


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        ({"engine": {"use": "none"}}, "engine.use = 'none': a pipeline cannot do without", ""),
        (
            {"proposer": {"match_tokens": 2}},
            "proposer.match_tokens is set, and proposer.use is 'none'",
            "set proposer.use too",
        ),
    ],
)
def test_only_optional_components_can_be_disabled(
    section: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        vlmkit.load("mock", **section)
    assert (str(error.value), error.value.hint) == (message, hint)


def test_a_mapping_as_config_is_refused_with_a_hint():
    with pytest.raises(ConfigError, match="was a mapping") as error:
        vlmkit.load("mock", config={"engine": {"text": "hello"}})
    assert "by their names" in error.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": 5}, "config is the path of a TOML file or a Config, and was int"),
        ({"revision": 5}, "revision is a text, and was int"),
        ({"on_stage": 5}, "on_stage is a function, and was int"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(arguments, message):
    with pytest.raises(ConfigError) as error:
        vlmkit.load("mock", **arguments)
    assert str(error.value) == message
    assert error.value.hint


def test_a_closed_model_reports_that_it_is_closed() -> None:
    with vlmkit.load("mock") as model:
        assert model.generate("hello").text == "hello"
    for ask in (
        lambda: model.generate("hello"),
        lambda: list(model.stream("hello")),
        lambda: asyncio.run(model.agenerate("hello")),
        lambda: model.embed(["hello"]),
        lambda: model.score("hello", ["x"]),
    ):
        with pytest.raises(EngineError, match="model 'mock' is closed") as caught:
            ask()
        assert caught.value.hint == "load it again, or ask it inside of its with statement"
