"""Request fields of plugins, per-sequence states of components, and claims of samplers."""

import gc
import logging
import pickle
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import vlmkit
from vlmkit.assembly.load import assemble
from vlmkit.cli.loading import opened, read_with_plugins, wanted
from vlmkit.config import Component, Config, ModelEntry
from vlmkit.errors import ConfigError, EngineError, PluginError, RequestError
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.runner import Runner
from vlmkit.interfaces.sampler import FOLLOWED, SamplerClaims
from vlmkit.kit.per_sequence import PerSequence
from vlmkit.plugins import loader
from vlmkit.plugins.kinds import ENGINE, KINDS
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.pipeline.alias_runner import AliasRunner
from vlmkit.running.pipeline.pipeline import Pipeline, claims_of
from vlmkit.running.prompting.request_fields import RESERVED, checked_fields, facts_of
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_server.app import create_app
from vlmkit_server.settings.server import ServerSettings
from vlmkit_testing import RequestFieldContract, RunnerContract, new_sequence
from vlmkit_testing.contracts import sampler_subject


def mock_model(**parts: Any) -> vlmkit.Model:
    engine = MockEngine(MockEngineSettings())
    return vlmkit.Model(Pipeline(tokenizer=MockTokenizer(), engine=engine, **parts))


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    much: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    way: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] | None = None
    inner: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()


class Loose(msgspec.Struct, frozen=True):
    much: float = 0.5


class Soft(msgspec.Struct, forbid_unknown_fields=True):
    much: float = 0.5


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    much: float = 0.5


class Odd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    much: complex = 1j
    what: type = int


FIELD = RequestField("odd", Shape)


# Registration.


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("odd", "a value of type 'str' is no RequestField"),
        (RequestField("", Shape), "its name '' is not up to 64"),
        (RequestField("Odd", Shape), "its name 'Odd' is not"),
        (RequestField("o.d", Shape), "its name 'o.d' is not"),
        (RequestField("o" * 65, Shape), "its name"),
        (RequestField(7, Shape), "its name 7 is not"),  # type: ignore[arg-type]
        (RequestField("temperature", Shape), "'temperature' is a field of requests already"),
        (RequestField("odd", dict), "the shape of 'odd' is no subclass"),  # type: ignore[type-var]
        (RequestField("odd", Loose), "the shape of 'odd' must be declared as in class Shape("),
        (RequestField("odd", Soft), "the shape of 'odd' must be declared as in class Shape("),
        (RequestField("odd", Listed), "the shape of 'odd' must be declared as in class Shape("),
        (RequestField("odd", Odd), "the shape of 'odd' cannot be read from JSON: "),
        (RequestField("odd", Shape, "states"), "'odd' changes 'states', which can be choices or"),
        (RequestField("odd", Shape, identity=repr), "'odd' has an identity and changes 'choices'"),  # type: ignore[arg-type]
        (RequestField("odd", Shape, identity=b"x"), "the identity of 'odd' is no function"),  # type: ignore[arg-type]
        (RequestField("odd", Shape, "all"), "'odd' changes 'all', which can"),  # type: ignore[arg-type]
    ],
)
def test_fields_with_an_invalid_definition_are_refused_at_registration(
    field: Any, problem: str
) -> None:
    registry = Registries("dist").samplers
    with pytest.raises(PluginError) as caught:
        registry.add("x", print, request_fields=(field,))
    assert str(caught.value).startswith(f"sampler 'x' adds no field to requests: {problem}")
    assert not list(registry)


def test_only_components_that_see_sequences_can_add_fields() -> None:
    able = {"engine", "scheduler", "sampler", "proposer"}
    for kind in KINDS:
        registry = Registries("dist").of(kind)
        field = RequestField("odd", Shape, "nothing")
        if kind.name in able:
            registry.add("x", print, request_fields=(field,))
            continue
        with pytest.raises(PluginError, match="'odd' changes 'nothing', but none can be added"):
            registry.add("x", print, request_fields=(field,))


def test_a_field_of_an_engine_must_change_states_or_nothing() -> None:
    registry = Registries("dist").of(ENGINE)
    with pytest.raises(PluginError, match="changes 'choices', which can be states or nothing"):
        registry.add("x", print, request_fields=(FIELD,))


def test_a_provider_cannot_add_one_field_twice() -> None:
    registry = Registries("dist").samplers
    with pytest.raises(PluginError, match="adds one field to requests twice"):
        registry.add("x", print, request_fields=(FIELD, FIELD))
    with pytest.raises(PluginError, match="must be given a tuple of RequestField"):
        registry.add("x", print, request_fields=[FIELD])  # type: ignore[arg-type]


def test_fields_of_the_server_request_bodies_are_reserved() -> None:
    app = create_app({}, ServerSettings(allow_generate=True))
    readers = [route.reader for route in app.state.apis.routes]
    every = set(SamplingParams.__struct_fields__).union(*(each.fields for each in readers))
    own = set[str]().union(*(each.fields for each in readers if each.takes_added))
    assert own | set(SamplingParams.__struct_fields__) <= RESERVED <= every


# Requests.


@pytest.mark.parametrize(
    ("value", "param", "problem"),
    [
        ({"much": 2}, "odd.much", "Expected `float` <= 1.0"),
        ({"way": "UP"}, "odd.way", "Expected `str` matching regex '^[a-z]+$'"),
        ({"inner": [1, -1]}, "odd.inner[1]", "Expected `int` >= 0"),
        ({"secret": 1}, "odd", "there is no such field in it; odd has much, way, inner"),
        (None, "odd", "Expected `object`, got `null`"),
    ],
)
def test_a_wrong_value_names_its_path_and_bound(value: Any, param: str, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked_fields({"odd": value}, {"odd": FIELD})
    assert (caught.value.param, str(caught.value)) == (param, f"{param}: {problem}")


def test_values_of_a_field_can_be_sent_to_another_process() -> None:
    facts = facts_of(FIELD)
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert facts.schema["$defs"]["Shape"]["properties"]["much"]["maximum"] == 1


def test_only_fields_that_change_states_separate_the_prefix_cache() -> None:
    declared = [RequestField("states", Shape, "states"), RequestField("choices", Shape)]
    with mock_model(request_fields=declared) as model:
        prompt = "a prompt that fills some blocks of the cache, so that it is found again" * 2

        def cached(**fields: Any) -> int:
            return model.generate(prompt, fields=fields).usage.cached_tokens

        assert cached() == 0
        assert cached(choices={"much": 0.1}) > 0
        assert cached(states={"much": 0.1}) == 0
        assert cached(states={"much": 0.2}) == 0
        assert cached(states={"much": 0.2}, choices={}) > 0


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class Adapters:
    """The weights of adapters by their names, as an engine keeps them."""

    def __init__(self, **weights: Any) -> None:
        self.weights = weights

    def identity(self, adapter: Adapter) -> Any:
        if adapter.name not in self.weights:
            raise RequestError("there is no such adapter", param="adapter.name")
        weights = self.weights[adapter.name]
        return weights() if callable(weights) else weights

    @property
    def field(self) -> RequestField[Adapter]:
        return RequestField("adapter", Adapter, "states", identity=self.identity)


LONG = "a prompt that fills some blocks of the cache, so that it is found again" * 2


def test_content_that_is_replaced_under_the_same_name_reuses_no_cached_block() -> None:
    adapters = Adapters(legal=b"weights 1", twin=b"weights 1")
    with mock_model(request_fields=[adapters.field]) as model:

        def cached(name: str) -> int:
            return model.generate(LONG, fields={"adapter": {"name": name}}).usage.cached_tokens

        assert cached("legal") == 0
        assert (cached_twin := cached("twin")) > 0
        adapters.weights["legal"] = b"weights 2"
        assert cached("legal") == 0
        assert cached("legal") == cached("twin") == cached_twin
        adapters.weights["legal"] = b"weights 1"
        assert cached("legal") == cached_twin


def test_an_identity_is_resolved_once_and_given_to_the_engine_with_the_sequence() -> None:
    resolved, seen = [], []

    class Records(MockEngine):
        def admit(self, sequence: Any) -> Any:
            seen.append((field.of(sequence), field.identity_of(sequence)))
            return super().admit(sequence)

    def identity(adapter: Adapter) -> bytes:
        resolved.append(adapter)
        return b"weights %d" % len(resolved)

    field = RequestField("adapter", Adapter, "states", identity=identity)
    with vlmkit.Model(
        Pipeline(tokenizer=MockTokenizer(), engine=Records(), request_fields=[field])
    ) as model:
        model.generate("hi", fields={"adapter": {"name": "a"}}, n=3)
        model.generate("hi")
    assert resolved == [Adapter(name="a")]
    assert seen == [(Adapter(name="a"), b"weights 1")] * 3 + [(None, b"")]


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (lambda: 1 / 0, "the engine failed on the field 'adapter'"),
        (b"", "the engine returned no bytes as the identity of the field 'adapter'"),
        ("text", "the engine returned no bytes as the identity of the field 'adapter'"),
    ],
)
def test_an_identity_that_fails_fails_its_own_request_by_name(weights: Any, problem: str) -> None:
    adapters = Adapters(bad=weights, good=b"weights")
    with mock_model(request_fields=[adapters.field]) as model:
        with pytest.raises(EngineError, match=problem):
            model.generate("hi", fields={"adapter": {"name": "bad"}})
        with pytest.raises(RequestError) as caught:
            model.generate("hi", fields={"adapter": {"name": "unknown"}})
        assert caught.value.param == "adapter.name"
        assert model.generate("hi", fields={"adapter": {"name": "good"}}).text == "hi"


ADAPTED = """
import msgspec
import vlmkit
from vlmkit.interfaces.request_field import RequestField
from vlmkit_mock.engine import MockEngine

VLMKIT_API = (1, 0)


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    scale: float = 1.0


def identity(adapter):
    return {"a": b"one", "b": b"two"}[adapter.name]


FIELD = RequestField("adapter", Adapter, "states", identity=identity)


@vlmkit.hookimpl
def vlmkit_register_engines(registry):
    registry.add(
        "adapted",
        lambda context: MockEngine(),
        cannot_serve=lambda checkpoint: None if checkpoint.model_type == "mock" else "no",
        request_fields=(FIELD,),
    )
"""


def adapted(tmp_path: Path, aliases: str) -> Path:
    (tmp_path / "adapted.py").write_text(ADAPTED)
    (config := tmp_path / "vlmkit.toml").write_text(
        'plugins = ["./adapted.py"]\n[engine]\nuse = "adapted"\n'
        f'[[models]]\nmodel = "mock"\nname = "base"\naliases = {aliases}\n'
    )
    return config


def test_an_error_of_an_identity_names_the_plugin_of_the_engine(tmp_path: Path) -> None:
    file = adapted(tmp_path, "[]")
    layered, plugins = read_with_plugins(file, ())
    runner = assemble(layered.config.entries()[0], layered.config, plugins)
    with vlmkit.Model(runner) as model, pytest.raises(EngineError) as caught:
        model.generate("hi", fields={"adapter": {"name": "c"}})
    assert str(caught.value).startswith("engine 'adapted' from '")
    assert "failed on the field 'adapter'" in str(caught.value)


# Aliases.


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('{other = {name = "a"}}', "other is taken by no component of this model"),
        ('{adapter = {name = "a", scale = "x"}}', "adapter.scale: Expected `float`"),
        ("{adapter = {}}", "adapter: Object missing required field `name`"),
    ],
)
def test_fields_of_an_alias_that_the_model_cannot_take_are_refused_at_load(
    tmp_path: Path, fields: str, problem: str
) -> None:
    file = adapted(tmp_path, f'["plain", {{name = "legal", fields = {fields}}}]')
    layered, plugins = read_with_plugins(file, ())
    with pytest.raises(ConfigError) as caught:
        assemble(layered.config.entries()[0], layered.config, plugins)
    assert str(caught.value).startswith(
        f"alias 'legal' of model 'base' sets request fields that cannot be used: {problem}"
    )


def test_a_model_that_is_opened_under_an_alias_has_its_fields(tmp_path: Path) -> None:
    file = adapted(tmp_path, '["plain", {name = "legal", fields = {adapter = {name = "a"}}}]')
    with opened(wanted("legal", file, ())) as model:
        assert model.generate(LONG).usage.cached_tokens == 0
        same = {"adapter": {"name": "a"}}
        assert model.generate(LONG, fields=same).usage.cached_tokens > 0
        with pytest.raises(
            RequestError, match="adapter is set by the model name 'legal'"
        ) as caught:
            model.generate(LONG, fields={"adapter": {"name": "b"}})
        assert caught.value.param == "adapter"
    with opened(wanted("plain", file, ())) as model:
        assert model.generate(LONG, fields={"adapter": {"name": "b"}}).text


class TestARunnerUnderAnAlias(RunnerContract):
    def make(self) -> Runner:
        model = mock_model(request_fields=[Adapters(a=b"1").field])
        return AliasRunner(model.runner, "legal", {"adapter": {"name": "a"}})

    def fail(self, runner: Runner) -> None:
        with pytest.raises(EngineError):
            vlmkit.Model(runner).generate('{"mock": {"text": "abc", "crash_at_token": 1}}')


class TestAFieldOfAdapters(RequestFieldContract):
    def make(self) -> RequestField[Any]:
        return Adapters(legal=b"weights 1", medical=b"weights 2").field

    def values(self) -> list[Mapping[str, Any]]:
        return [{"name": "legal"}, {"name": "medical"}]

    def unknown(self) -> list[Mapping[str, Any]]:
        return [{"name": "forgotten"}]


class TestAFieldWithoutAnIdentity(RequestFieldContract):
    def make(self) -> RequestField[Any]:
        return FIELD

    def values(self) -> list[Mapping[str, Any]]:
        return [{"much": 0.1}, {"way": "up", "inner": [1, 2]}, {}]


CLASH = """
import msgspec
import vlmkit
from vlmkit.interfaces.request_field import RequestField

VLMKIT_API = (1, 0)

def shape(name):
    return msgspec.defstruct(name, [], frozen=True, forbid_unknown_fields=True)

ONE, OTHER = RequestField("odd", shape("One"), "nothing"), RequestField("odd", shape("Other"))

@vlmkit.hookimpl
def vlmkit_register_samplers(registry):
    registry.add("same", lambda c: vlmkit.ArraySampler(), request_fields=(ONE,))
    registry.add("other", lambda c: vlmkit.ArraySampler(), request_fields=(OTHER,))

@vlmkit.hookimpl
def vlmkit_register_schedulers(registry):
    registry.add("odd", lambda c: vlmkit.ContinuousScheduler(), request_fields=(ONE,))
"""


def test_two_components_with_different_definitions_of_one_field_are_refused(tmp_path: Path) -> None:
    (file := tmp_path / "clash.py").write_text(CLASH)
    parts: Any = {"plugins": {"files": [str(file)]}, "scheduler": {"use": "odd"}}
    with vlmkit.load("mock", sampler={"use": "same"}, **parts) as model:
        assert set(model.facts.request_fields) == {"odd"}
    with pytest.raises(PluginError) as caught:
        vlmkit.load("mock", sampler={"use": "other"}, **parts)
    assert str(caught.value) == (
        f"scheduler 'odd' from {str(file)!r} and sampler 'other' from {str(file)!r} both add the "
        "field 'odd' to requests, with different definitions"
    )


# States.


def test_states_of_components_are_separate_and_are_freed_with_the_sequence() -> None:
    class State:
        pass

    one, two = PerSequence(lambda _: State()), PerSequence(lambda _: State())
    sequence, other = new_sequence(), new_sequence()
    states = [one.of(sequence), two.of(sequence), one.of(other)]
    assert len(set(map(id, states))) == 3
    assert one.of(sequence) is states[0]
    held = [weakref.ref(state) for state in states]
    del sequence, states
    gc.collect()
    assert [ref() is None for ref in held] == [True, True, False]


def test_a_component_can_be_built_from_the_tokenizer_of_a_model(tmp_path: Path) -> None:
    (file := tmp_path / "speller.py").write_text(
        "import vlmkit\nVLMKIT_API = (1, 0)\nclass Speller(vlmkit.ArraySampler):\n    pass\n"
        "def build(context):\n    assert context.tokenizer.encode('a') == [97]\n"
        "    return Speller()\n"
        "@vlmkit.hookimpl\ndef vlmkit_register_samplers(registry):\n"
        "    registry.add('speller', build)\n"
    )
    plugins = loader.load(files=[file])
    config = Config(sampler=Component(use="speller"))
    runner = assemble(ModelEntry(model="mock"), config, plugins)
    runner.close()
    with pytest.raises(ConfigError, match="needs a model's tokenizer, and none was given"):
        plugins.samplers.build("speller", {}, BuildContext())


# Claims.


class Claims:
    def __init__(self, **claims: Any) -> None:
        vars(self).update(claims)

    prepare = vlmkit.ArraySampler.prepare


def test_a_sampler_without_claims_claims_to_follow_every_parameter() -> None:
    assert claims_of(vlmkit.ArraySampler()) == SamplerClaims(frozenset(), is_exact=True)
    claims = claims_of(Claims(ignores={"top_k"}, is_exact=False))
    assert claims == SamplerClaims(frozenset({"top_k"}), is_exact=False)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"ignores": "top_k"}, "has ignores of type 'str', not a frozenset"),
        ({"ignores": frozenset({1})}, "has ignores of type 'frozenset', not a frozenset"),
        ({"ignores": {"seed"}}, "says that it ignores 'seed', which is not a sampler's to follow"),
        ({"is_exact": "no"}, "has is_exact of type 'str', not a bool"),
    ],
)
def test_an_invalid_claim_of_a_sampler_is_refused(claims: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        mock_model(sampler=Claims(**claims))


def test_every_parameter_that_can_be_ignored_is_a_sampling_parameter() -> None:
    assert set(SamplingParams.__struct_fields__) > FOLLOWED


@pytest.mark.parametrize("field", sorted(FOLLOWED))
def test_a_parameter_that_the_sampler_ignores_is_refused_unless_it_has_no_effect(
    field: str,
) -> None:
    class Plain(vlmkit.ArraySampler):
        ignores = frozenset({field})

    value: Any = getattr(sampler_subject.FOLLOWED[field], field)
    with mock_model(sampler=Plain()) as model:
        assert model.generate("hi", **{field: getattr(SamplingParams(), field)}).text == "hi"
        with pytest.raises(RequestError) as caught:
            model.generate("hi", **{field: value})
        assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")


def test_an_ignored_default_of_a_model_has_no_effect_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Plain(vlmkit.ArraySampler):
        ignores = frozenset({"top_p", "top_k"})

    caplog.set_level(logging.WARNING)
    defaults = SamplingParams(temperature=0.5, top_p=0.9)
    with mock_model(sampler=Plain(), defaults=defaults) as model:
        assert model.facts.defaults == SamplingParams(temperature=0.5)
        assert model.facts.sampler.ignores == {"top_p", "top_k"}
        assert model.generate("hi").text == "hi"
    assert caplog.text.count("does not follow the default of top_p") == 1
