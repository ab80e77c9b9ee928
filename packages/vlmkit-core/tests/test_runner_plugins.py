"""Runners of plugins: chosen by the config, or by the scheme of a model's reference."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

import vlmkit
from mock_model import wait_until
from vlmkit.assembly.load import assemble, build_plan
from vlmkit.assembly.sources import find, runner_of_scheme
from vlmkit.cli.doctor import verdicts
from vlmkit.config import Component, Config, Group, ModelEntry
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import CheckpointError, ConfigError, PluginError
from vlmkit.interfaces.observer import Observer
from vlmkit.running.replicas import Replicas
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.plugins import PluginSettings

PLUGIN = """
from pathlib import Path

import msgspec
import vlmkit
from vlmkit.errors import ConfigError
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer

VLMKIT_API = (1, 0)
LOG = Path(__file__).with_suffix(".log")


def note(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")


class Wrapper:
    changes = {}

    def __init__(self, runner):
        self._runner = runner

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def close(self):
        note("wrapper closed")
        self._runner.close()


class Dead(Wrapper):
    is_ready = False


class Raising(Wrapper):
    @property
    def is_full(self):
        return False

    @property
    def is_ready(self):
        if getattr(self, "seen", False):
            raise OSError("no answer")
        self.seen = True
        return True


class Changing(Wrapper):
    num = 0

    @property
    def facts(self):
        Changing.num += 1
        return vlmkit_replace(self._runner.facts, name=f"model {Changing.num}")


from dataclasses import replace as vlmkit_replace


class WithoutFacts(Wrapper):
    facts = {"name": "model"}


class ImagesFirst(Wrapper):
    @property
    def facts(self):
        return vlmkit_replace(self._runner.facts, modalities=("image", "text"))


class FarSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "far"


def far(context):
    if "broken" in context.reference:
        raise OSError(f"no answer from {context.reference}")
    if "shut" in context.reference:
        raise ConfigError(f"{context.reference} is shut")
    note(f"{context.reference} {context.name} {context.bounds.max_unread_tokens}")
    assert context.checkpoint is None
    return Wrapper(
        vlmkit.Pipeline(name=context.name, tokenizer=MockTokenizer(), engine=MockEngine())
    )


def greedy(context):
    context.pipeline()
    context.pipeline()
    raise ConfigError("it did not work out")


def forgetful(context):
    context.pipeline()
    return "a runner"


@vlmkit.hookimpl
def vlmkit_register_runners(registry):
    for made in (Wrapper, Dead, Raising, Changing, WithoutFacts, ImagesFirst):
        registry.add(made.__name__, lambda context, made=made: made(context.pipeline()))
    registry.add("greedy", greedy)
    registry.add("forgetful", forgetful)
    registry.add("far", far, schemes=("far",), settings=FarSettings, examine=lambda c: "far away")


@vlmkit.hookimpl
def vlmkit_register_engines(registry):
    for name, runner in (("cautious", "Wrapper"), ("mistaken", "absent")):
        registry.add(name, lambda _: MockEngine(), priority=-1, runner=runner)
"""


def config_of(folder: Path, **sections: Any) -> Config:
    file = folder / "mine.py"
    file.write_text(PLUGIN)
    return Config(plugins=PluginSettings(files=(str(file),)), **sections)


def loaded(
    folder: Path, reference: str = "mock", entry: dict[str, Any] | None = None, **sections: Any
) -> vlmkit.Model:
    config = config_of(folder, **sections)
    entry = ModelEntry(model=reference, **(entry or {}))  # type: ignore[assignment]
    return vlmkit.Model(assemble(entry, config, load_plugins(config.plugins)))  # type: ignore[arg-type]


def named(use: str, **settings: Any) -> Component:
    return Component(use=use, settings=settings)


def notes(folder: Path) -> list[str]:
    log = folder / "mine.log"
    return log.read_text().splitlines() if log.exists() else []


# Runners that the config names.


def test_a_model_is_one_pipeline_unless_the_config_names_a_runner(tmp_path: Path) -> None:
    for use in ("none", "auto"):
        with loaded(tmp_path, runner=named(use)) as model:
            assert isinstance(model.runner, vlmkit.Pipeline)


@pytest.mark.parametrize(
    ("use", "expected"),
    [("auto", "Wrapper"), ("none", "Pipeline"), ("replicas", "Replicas"), (None, "Wrapper")],
)
def test_an_engine_names_the_runner_unless_the_config_does(
    use: str | None, expected: str, tmp_path: Path
) -> None:
    stated = {} if use is None else {"runner": named(use)}
    with loaded(tmp_path, engine=named("cautious"), **stated) as model:
        assert type(model.runner).__name__ == expected


def test_a_runner_that_an_engine_names_and_no_plugin_provides_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no installed plugin provides runner 'absent'"):
        loaded(tmp_path, engine=named("mistaken"))


def test_replicas_are_pipelines_of_the_same_entry_and_config(tmp_path: Path) -> None:
    replicas = named("replicas", num_replicas=3)
    bounds = PipelineSettings(max_unread_tokens=123)
    with loaded(tmp_path, entry={"name": "own"}, runner=replicas, pipeline=bounds) as model:
        assert isinstance(model.runner, Replicas)
        assert len({id(runner) for runner in model.runner.runners}) == 3
        for runner in model.runner.runners:
            assert isinstance(runner, vlmkit.Pipeline)
            assert (runner.facts.name, runner.facts.bounds) == ("own", bounds)
        assert model.generate("hello").text == "hello"


def test_a_model_of_several_can_have_a_runner_of_its_own(tmp_path: Path) -> None:
    own = {"runner": {"use": "replicas", "num_replicas": 4}}
    with loaded(tmp_path, entry=own, runner=named("Wrapper")) as model:
        assert isinstance(model.runner, Replicas)
        assert len(model.runner.runners) == 4


@pytest.mark.parametrize("num_replicas", [0, 65, "two"])
def test_a_number_of_replicas_out_of_bounds_is_refused(tmp_path: Path, num_replicas: Any) -> None:
    with pytest.raises(ConfigError, match="runner 'replicas'"):
        loaded(tmp_path, runner=named("replicas", num_replicas=num_replicas))


def test_observers_of_config_and_caller_are_in_each_wrapped_pipeline(tmp_path: Path) -> None:
    seen: list[str] = []
    closed: list[int] = []

    class Seen(Observer):
        def finished(self, request: Any, end: Any, at_s: float) -> None:
            seen.append(request.model)

        def close(self) -> None:
            closed.append(1)

    config = config_of(
        tmp_path, runner=named("replicas"), observers=Group(use=("counters",), settings={})
    )
    entry, plugins = ModelEntry(model="mock"), load_plugins(config.plugins)
    runner = assemble(entry, config, plugins, observers={"seen": Seen})
    with vlmkit.Model(runner) as model:

        async def ask() -> None:
            await asyncio.gather(*(model.agenerate("hello") for _ in range(8)))

        asyncio.run(ask())
        wait_until(lambda: len(seen) == 8)
        assert isinstance(runner, Replicas)
        each = [one.stats().counters["num_finished"] for one in runner.runners]
        assert min(each) > 0
        wait_until(lambda: model.stats().observed["counters"].get("num_finished") == 8)
    assert len(closed) == 2
    assert set(seen) == {"mock"}


def test_a_plan_builds_the_same_pipeline_elsewhere(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, pipeline=PipelineSettings(max_unread_tokens=99), runner=named("replicas")
    )
    (tmp_path / "mine.py").write_text(
        PLUGIN
        + """
@vlmkit.hookimpl(specname="vlmkit_register_runners")
def more(registry):
    def planned(context):
        Path(__file__).with_suffix(".plan").write_bytes(context.pipelines.plan())
        return context.pipeline()

    registry.add("planned", planned)
"""
    )
    config = Config(
        **{n: getattr(config, n) for n in config.__struct_fields__}
        | {
            "runner": named("planned"),
            "engine": named("mock", text="fixed"),
            "models": (ModelEntry(model="secret://other"),),
        }
    )
    entry = ModelEntry(model="mock", name="own")
    with vlmkit.Model(assemble(entry, config, load_plugins(config.plugins))) as model:
        facts, answer = model.facts, model.generate("hello").text
    plan = (tmp_path / "mine.plan").read_bytes()
    assert b"secret" not in plan
    runner = build_plan(plan)
    assert isinstance(runner, vlmkit.Pipeline)
    with vlmkit.Model(runner) as model:
        assert (model.facts, model.generate("hello").text) == (facts, answer)
        assert answer == "fixed"


# Runners that are refused.


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        ("Dead", "was built, and is not ready"),
        ("Raising", "was built, and it failed at once: OSError: no answer"),
        ("Changing", "was built, and its facts change"),
        ("ImagesFirst", "was built, and its facts do not name 'text' as the first modality"),
        ("WithoutFacts", "'facts' is of type 'dict', not 'RunnerFacts'"),
        ("forgetful", "was built as 'str'"),
    ],
)
def test_a_runner_that_cannot_work_is_refused_by_name(
    tmp_path: Path, use: str, problem: str
) -> None:
    with pytest.raises(PluginError) as caught:
        loaded(tmp_path, runner=named(use))
    assert str(caught.value).startswith(f"runner {use!r} from {str(tmp_path / 'mine.py')!r} was")
    assert problem in str(caught.value)


@pytest.mark.parametrize("use", ["greedy", "forgetful", "Dead"])
def test_pipelines_of_a_runner_that_fails_are_closed(
    tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    build = vlmkit.Pipeline.__init__

    def noted(self: Any, **parts: Any) -> None:
        build(self, **parts)
        made.append(self)

    monkeypatch.setattr(vlmkit.Pipeline, "__init__", noted)
    with pytest.raises((ConfigError, PluginError)):
        loaded(tmp_path, runner=named(use))
    assert made
    assert not any(pipeline.is_ready for pipeline in made)


def test_the_name_of_a_missing_runner_is_reported_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no installed plugin provides runner 'replica'"):
        loaded(tmp_path, runner=named("replica"))


def test_settings_without_a_runner_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runner\.num_replicas is set, and runner\.use is"):
        loaded(tmp_path, runner=named("none", num_replicas=2))


# Runners that own schemes.


def test_a_reference_of_a_runner_needs_no_files(tmp_path: Path) -> None:
    stages: list[str] = []
    config = config_of(tmp_path, pipeline=PipelineSettings(max_unread_tokens=77))
    entry = ModelEntry(model="far://host:80/team/tiny")
    runner = assemble(entry, config, load_plugins(config.plugins), stages.append)
    with vlmkit.Model(runner) as model:
        assert model.generate("hello").text == "hello"
        assert model.facts.name == "tiny"
    assert stages == ["runner", "ready"]
    assert notes(tmp_path) == ["far://host:80/team/tiny tiny 77", "wrapper closed"]


def test_vlmkit_load_takes_a_reference_of_a_runner(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with vlmkit.load("far://host:80", config=config) as model:
        assert model.facts.name == "host:80"


@pytest.mark.parametrize("runner", [named("none"), named("auto"), named("far", name="x")])
def test_the_owner_of_a_scheme_needs_no_name_in_the_config(
    tmp_path: Path, runner: Component
) -> None:
    with loaded(tmp_path, "far://host", runner=runner) as model:
        assert model.generate("hello").text == "hello"


def test_another_runner_for_an_owned_scheme_is_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "far://host", runner=named("replicas"))
    assert str(caught.value) == (
        f"runner.use = 'replicas', but runner 'far' from {str(tmp_path / 'mine.py')!r} owns the "
        "references that begin with 'far://'"
    )


def test_components_of_a_pipeline_are_refused_for_a_model_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine is set for model 'far://host', which has no"):
        loaded(tmp_path, "far://host", entry={"engine": {"use": "mock"}})


def test_a_runner_of_a_scheme_serves_no_model_with_files(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="it has only what begins with 'far://'"):
        loaded(tmp_path, runner=named("far"))


def test_replicas_of_a_model_without_files_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    plugins = load_plugins(config.plugins)
    with pytest.raises(ConfigError, match="needs a model whose files are on this machine"):
        plugins.runners.build("replicas", {}, vlmkit.plugins.registry.BuildContext("far://x"))


def test_a_reference_of_a_runner_has_no_files_to_fetch(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    plugins = load_plugins(config.plugins)
    with pytest.raises(CheckpointError) as caught:
        find("far://user:pass@host/tiny", plugins)
    assert str(caught.value) == (
        "model 'far://***@host/tiny' has no files: runner 'far' from "
        f"{str(tmp_path / 'mine.py')!r} answers its requests"
    )
    with pytest.raises(CheckpointError) as caught:
        find("fat://host", plugins)
    assert f"far:// ({tmp_path / 'mine.py'})" in caught.value.hint


@pytest.mark.parametrize("reference", ["far://user:hidden@broken/x", "far://user:hidden@shut/x"])
def test_errors_of_a_runner_do_not_repeat_a_password(
    tmp_path: Path, reference: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(vlmkit.VlmkitError) as caught:
        loaded(tmp_path, reference)
    assert "hidden" not in f"{caught.value}{caught.value.hint}{caplog.text}"
    assert "far://***@" in str(caught.value)


def test_an_invalid_reference_of_a_runner_is_refused(tmp_path: Path) -> None:
    plugins = load_plugins(config_of(tmp_path).plugins)
    with pytest.raises(CheckpointError, match="cannot be used: it names nothing"):
        runner_of_scheme("far://", plugins)


OWNER = """
import vlmkit

VLMKIT_API = (1, 0)

@vlmkit.hookimpl
def vlmkit_register_KINDs(registry):
    registry.add("OWN", lambda context: None, schemes=("far",))
"""


@pytest.mark.parametrize("kinds", [("runner", "runner"), ("model", "runner"), ("runner", "model")])
def test_two_owners_of_a_scheme_are_both_named(tmp_path: Path, kinds: tuple[str, str]) -> None:
    files = []
    for name, kind in zip(("one", "two"), kinds, strict=True):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(OWNER.replace("KIND", kind).replace("OWN", name))
    plugins = load_plugins(PluginSettings(files=tuple(map(str, files))), diagnoses=True)
    [(broken, error)] = plugins.broken.items()
    assert broken in (str(files[0]), str(files[1]))
    assert "owns the scheme 'far'" in str(error)
    for part in ("'one'", "'two'", str(files[0]), str(files[1])):
        assert part in str(error)


# The doctor.


def test_the_doctor_names_the_runner_that_the_config_names(tmp_path: Path) -> None:
    config = config_of(tmp_path, runner=named("replicas"))
    plugins = load_plugins(config.plugins)
    checkpoint = vlmkit.fetch("mock")
    found = {
        v["component"]: v["provider"]
        for v in verdicts(checkpoint, config, plugins)
        if v["is_chosen"]
    }
    assert found["runner"] == "replicas"
    assert "runner" not in {v["component"] for v in verdicts(checkpoint, Config(), plugins)}
    cautious = config_of(tmp_path, engine=named("cautious"))
    named_by_engine = [v for v in verdicts(checkpoint, cautious, plugins) if v["is_chosen"]]
    assert "Wrapper" in {v["provider"] for v in named_by_engine}


def test_an_alias_sets_no_field_that_a_runner_does_not_take(tmp_path: Path) -> None:
    aliases = ({"name": "other", "fields": {"dry": {"multiplier": 1}}},)
    entry = msgspec.convert({"model": "far://host/tiny", "aliases": aliases}, ModelEntry)
    config = config_of(tmp_path)
    with pytest.raises(ConfigError, match="sets the request field 'dry', which runner 'far'"):
        assemble(entry, config, load_plugins(config.plugins))
    assert notes(tmp_path)[-1] == "wrapper closed"
