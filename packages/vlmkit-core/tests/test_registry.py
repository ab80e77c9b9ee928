"""Registries: listing, choosing and building providers, and the reasons for refusals."""

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_origin

import msgspec
import pytest

from vlmkit.errors import ConfigError, PluginError, PluginUnavailable, UnknownPlugin
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import KINDS
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.sampling import SamplingParams


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    width: Annotated[int, msgspec.Meta(ge=1)] = 7
    speed: float = 1.0


def built(context: BuildContext) -> Any:
    return context


@pytest.fixture
def registry() -> Registry[Any]:
    made: Registry[Any] = Registry("engine", "my-plugin")
    made.add("torch", built, settings=Settings, description="fast")
    made.add("onnx", built)
    return made


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    return BuildContext("model", Checkpoint("model", tmp_path))


# Names.


@pytest.mark.parametrize(
    "name", ["", "-", "a b", "a/b", "a.b", "a:b", "a\x1b[31m", "auto", "none", 7, b"a", None]
)
def test_a_name_must_be_a_plain_word(registry: Registry[Any], name: Any) -> None:
    with pytest.raises(PluginError) as error:
        registry.add(name, built)
    assert str(error.value) == f"engine name {name!r} must be letters, digits, '-' or '_'"


def test_a_name_cannot_be_registered_twice(registry: Registry[Any]) -> None:
    with pytest.raises(PluginError) as error:
        registry.add("torch", built)
    assert str(error.value) == "engine 'torch' is registered twice by 'my-plugin'"
    assert error.value.hint == "give one of them another name"


def test_a_build_that_is_no_function_is_refused(registry: Registry[Any]) -> None:
    with pytest.raises(PluginError) as error:
        registry.add("x", None)  # type: ignore[arg-type]
    assert str(error.value) == (
        "engine 'x' must be given a function as build, not a value of type 'NoneType'"
    )


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("why_not", "no GPU", "a function"),
        ("cannot_serve", None, "a function"),
        ("examine", "fast", "a function"),
        ("keep", True, "a function"),
        ("list_models", ["a/b"], "a function"),
        ("settings", dict, "a subclass of msgspec.Struct"),
        ("priority", "9", "a whole number or a function"),
        ("description", None, "a text"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_at_registration(
    registry: Registry[Any], field: str, value: Any, expected: str
) -> None:
    before = [provider.name for provider in registry]
    with pytest.raises(PluginError) as error:
        registry.add("x", built, **{field: value})
    assert str(error.value).startswith(f"engine 'x' must be given {expected} as {field}, not ")
    assert [provider.name for provider in registry] == before


@pytest.mark.parametrize(
    ("functions", "problem", "call"),
    [
        ({"build": object}, "too many positional arguments", "build(context)"),
        ({"why_not": lambda checkpoint: None}, "missing a required argument", "why_not()"),
        ({"cannot_serve": lambda: None}, "too many positional", "cannot_serve(checkpoint)"),
        ({"plan": lambda context: None}, "too many positional", "plan(context, load)"),
        ({"priority": lambda: 9}, "too many positional arguments", "priority(checkpoint)"),
    ],
)
def test_a_function_that_vlmkit_could_not_call_is_refused_at_registration(
    registry: Registry[Any], functions: dict[str, Any], problem: str, call: str
) -> None:
    with pytest.raises(PluginError, match=f"cannot be called: {problem}") as caught:
        registry.add("x", **{"build": built, **functions})
    assert caught.value.hint == f"vlmkit calls {call}"


def test_functions_may_take_more_than_they_are_given(registry: Registry[Any]) -> None:
    def cannot_serve(checkpoint: object, *, providers: object) -> None:
        """Accept everything."""

    registry.add("x", lambda *arguments: Encoder(), cannot_serve=cannot_serve)
    registry.add("y", lambda context, depth=3: Encoder(), why_not=lambda *_: None)


def test_an_error_of_a_build_names_the_provider_and_keeps_its_cause(
    registry: Registry[Any],
) -> None:
    registry.add("bad", lambda _: 1 // 0)
    with pytest.raises(PluginError) as error:
        registry.build("bad", {}, BuildContext())
    assert str(error.value) == (
        "engine 'bad' from 'my-plugin' could not be built: "
        "ZeroDivisionError: integer division or modulo by zero"
    )
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_vlmkit_error_of_a_build_is_passed_on_unchanged(registry: Registry[Any]) -> None:
    def refuse(_: BuildContext) -> Any:
        raise ConfigError("this machine has no GPU")

    registry.add("choosy", refuse)
    with pytest.raises(ConfigError, match="this machine has no GPU"):
        registry.build("choosy", {}, BuildContext())


def test_a_build_that_returns_none_is_reported(registry: Registry[Any]) -> None:
    registry.add("forgetful", lambda _: None)
    with pytest.raises(PluginError) as error:
        registry.build("forgetful", {}, BuildContext())
    assert str(error.value) == "engine 'forgetful' from 'my-plugin' was built as None"
    assert error.value.hint == "its build function must return the component"


def test_a_provider_can_describe_how_it_would_run_a_model(
    registry: Registry[Any], context: BuildContext
) -> None:
    registry.add(
        "wordy",
        built,
        settings=Settings,
        examine=lambda c: f"{c.settings.width} wide for {c.files.name}",
    )
    assert registry.examine("wordy", {"width": 3}, context) == "3 wide for model"
    assert registry.examine("torch", {}, context) == ""
    for name in ("wordy", "torch"):
        with pytest.raises(ConfigError, match="width"):
            registry.examine(name, {"width": 0}, context)


def test_an_examination_that_returns_no_text_is_refused(
    registry: Registry[Any], context: BuildContext
) -> None:
    registry.add("mute", built, examine=lambda _: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(
        PluginError, match="engine 'mute' from 'my-plugin' was examined, and returned"
    ):
        registry.examine("mute", {}, context)


def test_a_failed_examination_is_a_plugin_error(
    registry: Registry[Any], context: BuildContext
) -> None:
    registry.add("bad", built, examine=lambda _: str(1 // 0))
    with pytest.raises(PluginError, match="engine 'bad' from 'my-plugin' could not be built: Zero"):
        registry.examine("bad", {}, context)


# Built components.


def members(protocol: type) -> list[str]:
    return [name for name in dir(protocol) if not name.startswith("_")]


NEEDED = {
    (kind.plural, name)
    for kind in KINDS
    if kind.name not in ("model", "command")
    for name in members(kind.makes)
}


def protocol(plural: str) -> Any:
    return next(kind.makes for kind in KINDS if kind.plural == plural)


async def do_nothing(*args: Any, **kwargs: Any) -> None: ...


def stub_member(protocol: Any, name: str) -> Any:
    """Return a stub for a member of a protocol."""
    member = getattr(protocol, name)
    if not isinstance(member, property):
        is_async = inspect.iscoroutinefunction(member)
        return do_nothing if is_async else lambda *args, **kwargs: None
    stated = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
    kind = get_origin(stated) or stated
    limits = EngineLimits(
        vocab_size=1,
        max_sequence_tokens=1,
        max_sequences=1,
        capacity_tokens=1,
        max_chunk_tokens=1,
    )
    facts = RunnerFacts(
        name="model",
        limits=limits,
        modalities=("text",),
        eos_ids=frozenset(),
        defaults=SamplingParams(),
        bounds=PipelineSettings(),
    )
    found = {EngineLimits: limits, RunnerFacts: facts}
    return found[kind] if kind in found else kind()


def stub_component(kind: str, **changes: Any) -> Any:
    """Return a component of a kind whose methods and properties are attributes."""
    whole = {name: stub_member(protocol(kind), name) for name in members(protocol(kind))}
    return SimpleNamespace(**{n: v for n, v in (whole | changes).items() if v != "absent"})


def test_every_member_of_each_protocol_is_required() -> None:
    assert {("engines", "forward"), ("engines", "admit"), ("tokenizers", "vocab_size")} <= NEEDED
    assert {kind for kind, _ in NEEDED} == {
        "tokenizers",
        "media_encoders",
        "engines",
        "schedulers",
        "samplers",
        "proposers",
        "constraints",
        "observers",
        "media_loaders",
        "runners",
    }


@pytest.mark.parametrize(("kind", "name"), sorted(NEEDED))
def test_a_component_without_a_required_member_is_refused_by_name(kind: str, name: str) -> None:
    registry = getattr(Registries("my-plugin"), kind)
    registry.add("whole", lambda _: stub_component(kind))
    registry.add("partial", lambda _: stub_component(kind, **{name: "absent"}))
    assert registry.build("whole", {}, BuildContext())
    with pytest.raises(PluginError) as error:
        registry.build("partial", {}, BuildContext())
    assert str(error.value) == (
        f"{registry.kind} 'partial' from 'my-plugin' was built as 'SimpleNamespace', which lacks "
        f"{name!r} of the protocol {protocol(kind).__name__}"
    )
    module = protocol(kind).__module__
    assert module.startswith("vlmkit.interfaces.")
    assert error.value.hint == f"{module} says what each of its members does"


def test_all_missing_members_are_named_including_methods_that_are_no_functions() -> None:
    registry = Registries("my-plugin").media_encoders
    registry.add("partial", lambda _: stub_component("media_encoders", encode=None, close="absent"))
    with pytest.raises(PluginError, match="lacks 'encode', 'close' of the protocol MediaEncoder"):
        registry.build("partial", {}, BuildContext())


def test_a_method_with_other_arguments_is_refused_with_both_signatures() -> None:
    registry = Registries("my-plugin").tokenizers
    odd = stub_component("tokenizers", encode=lambda: [1], prompt=lambda messages: None)
    registry.add("odd", lambda _: odd)
    with pytest.raises(PluginError) as error:
        registry.build("odd", {}, BuildContext())
    assert str(error.value) == (
        "tokenizer 'odd' from 'my-plugin' was built as 'SimpleNamespace', which does not fit the "
        "protocol Tokenizer: 'prompt' takes (messages), but is called with (messages, *, tools, "
        "options); 'encode' takes (), but is called with (text, *, adds_special)"
    )


def test_a_method_can_rename_positional_arguments_and_take_optional_ones() -> None:
    def encode(what: str, adds_special: bool = False, hint: str = "") -> list[int]:
        return []

    registry = Registries("my-plugin").tokenizers
    registry.add("more", lambda _: stub_component("tokenizers", encode=encode, decode=bytes))
    assert registry.build("more", {}, BuildContext())


def test_a_property_that_is_a_method_is_refused() -> None:
    class Encoder:
        def identity(self) -> str:
            return "me"

        media_kinds = frozenset({"image"})

        def encode(self, slots: Any) -> Any: ...

        def close(self) -> None: ...

    registry = Registries("my-plugin").media_encoders
    registry.add("odd", lambda _: Encoder())  # type: ignore[arg-type,return-value]
    with pytest.raises(PluginError, match="'identity' is a method, not a property"):
        registry.build("odd", {}, BuildContext())


def test_a_component_can_delegate_its_members() -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    registry = Registries("my-plugin").media_encoders
    registry.add("wrapper", lambda _: Wrapper(stub_component("media_encoders")))
    assert isinstance(registry.build("wrapper", {}, BuildContext()), Wrapper)


class Encoder:
    """A complete media encoder; the classes below break one member each."""

    identity = "me"
    media_kinds = frozenset({"image"})

    def encode(self, slots: Any) -> Any: ...

    def close(self) -> None: ...


class UnsetIdentity(Encoder):
    @property
    def identity(self) -> str:  # type: ignore[override]
        raise RuntimeError("not yet\nknown")


class Listing(Encoder):
    media_kinds: Any = ["image"]  # noqa: RUF012


class Empty(Encoder):
    identity = None  # type: ignore[assignment]


class Awaited(Encoder):
    async def encode(self, slots: Any) -> Any: ...


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (UnsetIdentity, "'identity' raises RuntimeError: not yet known"),
        (Listing, "'media_kinds' is of type 'list', not 'frozenset'"),
        (Empty, "'identity' is of type 'NoneType', not 'str'"),
        (Awaited, "'encode' is an async function, but it is not awaited"),
    ],
)
def test_a_member_of_the_wrong_type_is_refused(make: type[Encoder], problem: str) -> None:
    registry = Registries("my-plugin").media_encoders
    registry.add("whole", lambda _: Encoder())
    registry.add("odd", lambda _: make())
    assert registry.build("whole", {}, BuildContext())
    with pytest.raises(PluginError) as error:
        registry.build("odd", {}, BuildContext())
    assert str(error.value) == (
        f"media encoder 'odd' from 'my-plugin' was built as {make.__name__!r}, which does not fit "
        f"the protocol MediaEncoder: {problem}"
    )


async def built_later(context: BuildContext) -> Any: ...


def built_in_steps(context: BuildContext) -> Any:
    yield Encoder()


@pytest.mark.parametrize("build", [built_later, built_in_steps])
def test_an_async_or_generator_build_is_refused_at_registration(
    registry: Registry[Any], build: Any
) -> None:
    with pytest.raises(PluginError, match="the build of engine 'x' is an async function or one"):
        registry.add("x", build)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda _: asyncio.sleep(0), "a 'coroutine', which is not awaited"),
        (lambda _: (Encoder() for _ in "one"), "a 'generator', which is not awaited"),
        (lambda _: Encoder, "the class 'Encoder', not as an instance of one"),
    ],
)
def test_a_build_that_does_not_return_an_instance_is_refused(build: Any, problem: str) -> None:
    registry = Registries("my-plugin").media_encoders
    registry.add("odd", build)
    with pytest.raises(PluginError) as error:
        registry.build("odd", {}, BuildContext())
    assert str(error.value) == f"media encoder 'odd' from 'my-plugin' was built as {problem}"


@pytest.mark.parametrize("end", [SystemExit(3), GeneratorExit(), BaseException("panic")])
def test_a_build_that_exits_does_not_end_the_process(
    registry: Registry[Any], end: BaseException
) -> None:
    def build(_: BuildContext) -> Any:
        raise end

    registry.add("bad", build)
    with pytest.raises(PluginError, match="engine 'bad' from 'my-plugin' could not be built: "):
        registry.build("bad", {}, BuildContext())


# Unusable settings types.


class RequiredSetting(msgspec.Struct):
    width: int


class Chooser(msgspec.Struct):
    use: str = "x"


class Row(msgspec.Struct, array_like=True):
    width: int = 1


class Endless(msgspec.Struct):
    inner: "Endless | None" = None


class Foreign(msgspec.Struct):
    place: Path | None = None


class Impossible(msgspec.Struct):
    width: Annotated[int, msgspec.Meta(ge=1)] = 0


class Raising(msgspec.Struct):
    width: int = msgspec.field(default_factory=lambda: 1 // 0)


class Lost(msgspec.Struct):
    width: "NoSuchType" = 1  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("struct", "problem"),
    [
        (RequiredSetting, "has no default for 'width'"),
        (Chooser, "has a field 'use', which says in each section who the provider is"),
        (Row, "is read from an array, and a section is a table"),
        (Endless, "holds itself, and a section is a tree"),
        (Foreign, "cannot be read from a config: TypeError: "),
        (Impossible, "has a default that it does not allow itself: ValidationError: Expected"),
        (Raising, "cannot be read from a config: ZeroDivisionError: "),
        (Lost, "cannot be read from a config: NameError: name 'NoSuchType' is not defined"),
    ],
)
def test_unusable_settings_types_are_refused_at_registration(
    registry: Registry[Any], struct: type[msgspec.Struct], problem: str
) -> None:
    with pytest.raises(PluginError) as error:
        registry.add("x", built, settings=struct)
    assert str(error.value).startswith(
        f"the settings {struct.__name__!r} of engine 'x' cannot work: the struct {problem}"
    )
    assert "x" not in [provider.name for provider in registry]


def test_a_model_that_is_no_checkpoint_is_refused() -> None:
    registry = Registries("my-plugin").models
    registry.add("bare", lambda _: Path("folder"))  # type: ignore[arg-type,return-value]
    with pytest.raises(PluginError, match=r"was built as '.*Path', not as a Checkpoint"):
        registry.build("bare", {}, BuildContext("bare"))


# Listing.


def test_providers_are_listed_by_name(registry: Registry[Any]) -> None:
    assert [(p.name, p.description, p.plugin) for p in registry] == [
        ("onnx", "", "my-plugin"),
        ("torch", "fast", "my-plugin"),
    ]


def test_an_unknown_name_is_reported_with_a_near_one(registry: Registry[Any]) -> None:
    with pytest.raises(UnknownPlugin) as error:
        registry.get("torhc")
    assert str(error.value) == "no installed plugin provides engine 'torhc'"
    assert error.value.hint == "did you mean 'torch'?"


def test_an_unknown_name_without_a_near_one_is_reported_with_all(registry: Registry[Any]) -> None:
    with pytest.raises(UnknownPlugin) as error:
        registry.get("zzz")
    assert error.value.hint == "installed: onnx, torch"


def test_an_unknown_name_without_installed_providers_says_so() -> None:
    with pytest.raises(UnknownPlugin) as error:
        Registry[Any]("sampler").get("x")
    assert error.value.hint == "installed: none"


# Merging.


def test_a_merge_that_fails_changes_nothing(registry: Registry[Any]) -> None:
    other: Registry[Any] = Registry("engine", "my-plugin")
    other.add("fresh", built)
    other.add("torch", built)
    with pytest.raises(PluginError, match="engine 'torch' is registered twice by 'my-plugin'"):
        registry.merge(other)
    assert [p.name for p in registry] == ["onnx", "torch"]


# Choosing.


def test_choosing_a_provider_that_cannot_run_is_an_error() -> None:
    registry: Registry[Any] = Registry("engine", "p")
    registry.add("gpu", built, why_not=lambda: "no CUDA device")
    with pytest.raises(PluginUnavailable) as error:
        registry.choose("gpu", "model")
    assert str(error.value) == "engine 'gpu' from 'p' cannot be used: no CUDA device"


def test_auto_chooses_the_highest_priority_that_can_serve() -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("best", built, priority=9, why_not=lambda: "no CUDA device")
    registry.add("good", built, priority=5, cannot_serve=lambda model: f"not {model}")
    registry.add("fair", built, priority=3)
    registry.add("poor", built)
    assert registry.choose("auto", "llava").name == "fair"


def test_auto_breaks_ties_by_name(registry: Registry[Any]) -> None:
    assert registry.choose("auto", "model").name == "onnx"


@pytest.mark.parametrize(("model", "best"), [("graphs", "onnx"), ("weights", "torch")])
def test_a_priority_can_depend_on_the_model(model: str, best: str) -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("onnx", built, priority=lambda model: 20 if model == "graphs" else 5)
    registry.add("torch", built, priority=10)
    assert registry.choose("auto", model).name == best


@pytest.mark.parametrize("answer", [None, "9", 9.5, [9]])
def test_a_priority_that_is_no_integer_counts_as_zero(answer: Any) -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("odd", built, priority=lambda _: answer)
    registry.add("sound", built, priority=1)
    assert registry.choose("auto", "model").name == "sound"
    assert registry.get("odd").priority_for("model") == 0


def test_a_priority_that_raises_counts_as_zero() -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("broken", built, priority=lambda model: model.no_such_thing)
    registry.add("poor", built, priority=-1)
    assert registry.choose("auto", "model").name == "broken"
    registry.add("sound", built, priority=1)
    assert registry.choose("auto", "model").name == "sound"


def test_priority_is_not_queried_from_a_provider_that_cannot_serve() -> None:
    def fail(_: object) -> int:
        raise AssertionError("asked")

    registry: Registry[Any] = Registry("engine")
    registry.add("no", built, priority=fail, cannot_serve=lambda _: "no")
    registry.add("yes", built)
    assert registry.choose("auto", "model").name == "yes"


def test_auto_reports_why_each_provider_was_not_chosen() -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("gpu", built, why_not=lambda: "no CUDA device")
    registry.add("cpu", built, cannot_serve=lambda _: "too large")
    with pytest.raises(PluginUnavailable) as error:
        registry.choose("auto", "model")
    assert str(error.value) == (
        "no installed engine can serve this model (cpu: too large; gpu: no CUDA device)"
    )
    assert "pip install" in error.value.hint


def test_auto_without_providers_reports_that_none_is_installed() -> None:
    with pytest.raises(PluginUnavailable, match=r"can serve this model \(none is installed\)"):
        Registry[Any]("engine").choose("auto", "model")


def test_a_check_that_raises_excludes_only_its_own_provider() -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("broken", built, priority=9, cannot_serve=lambda model: model.no_such_thing)
    registry.add("good", built)
    assert registry.choose("auto", "model").name == "good"
    assert registry.objections("model") == {
        "broken": "its own check failed with AttributeError",
        "good": None,
    }


def test_an_empty_objection_counts_as_none() -> None:
    registry: Registry[Any] = Registry("engine")
    registry.add("x", built, why_not=lambda: "", cannot_serve=lambda _: "")
    assert registry.choose("auto", "model").name == "x"
    assert registry.choose("x", "model").name == "x"


def test_why_not_is_called_before_cannot_serve() -> None:
    def fail(_: object) -> str:
        raise AssertionError

    registry: Registry[Any] = Registry("engine")
    registry.add("x", built, why_not=lambda: "no", cannot_serve=fail)
    assert registry.objections("model") == {"x": "no"}


# Settings.


def test_settings_are_passed_as_the_struct_of_the_provider(
    registry: Registry[Any], context: BuildContext
) -> None:
    assert registry.build("torch", {"width": 3}, context).settings == Settings(width=3)


def test_settings_of_the_command_line_can_be_strings(
    registry: Registry[Any], context: BuildContext
) -> None:
    arrived = registry.build("torch", {"width": "3", "speed": "0.5"}, context).settings
    assert arrived == Settings(width=3, speed=0.5)


def test_an_unknown_setting_is_reported_with_a_near_one(
    registry: Registry[Any], context: BuildContext
) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build("torch", {"widht": 3}, context)
    assert str(error.value) == "engine 'torch' has no setting 'widht'"
    assert error.value.hint == "did you mean 'width'?"


def test_an_unknown_setting_without_a_near_one_is_reported_with_all(
    registry: Registry[Any], context: BuildContext
) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build("torch", {"zzz": 3}, context)
    assert error.value.hint == "known: width, speed"


def test_a_setting_out_of_range_is_refused_with_its_path(
    registry: Registry[Any], context: BuildContext
) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build("torch", {"width": 0}, context)
    assert str(error.value) == "engine 'torch': width = 0: expected a whole number of at least 1"
    assert error.value.hint == "take 1 or more"


def test_all_wrong_settings_are_reported_together(
    registry: Registry[Any], context: BuildContext
) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build("torch", {"width": 0, "widht": 1, "zzz": 2}, context)
    assert [str(each) for each in error.value.each()] == [
        "engine 'torch' has no setting 'widht'",
        "engine 'torch' has no setting 'zzz'",
        "engine 'torch': width = 0: expected a whole number of at least 1",
    ]


def test_a_provider_without_settings_accepts_none(
    registry: Registry[Any], context: BuildContext
) -> None:
    assert registry.build("onnx", {}, context).settings == {}
    with pytest.raises(ConfigError) as error:
        registry.build("onnx", {"width": 3}, context)
    assert str(error.value) == "engine 'onnx' has no setting 'width'"


def test_settings_are_checked_before_anything_is_built(context: BuildContext) -> None:
    def fail(_: BuildContext) -> None:
        raise AssertionError

    registry: Registry[Any] = Registry("engine")
    registry.add("x", fail, settings=Settings)
    with pytest.raises(ConfigError):
        registry.build("x", {"width": "wide"}, context)


# The context.


def test_components_share_expensive_objects(registry: Registry[Any], context: BuildContext) -> None:
    first = registry.build("torch", {}, context).share("weights", lambda: [1])
    second = registry.build("onnx", {}, context).share("weights", lambda: [2])
    assert first is second
    assert BuildContext().share("weights", lambda: [3]) == [3]


def test_a_component_that_needs_a_model_is_refused_without_one() -> None:
    with pytest.raises(ConfigError, match="this component needs a model, and none was given"):
        _ = BuildContext("x").files


def test_cannot_serve_of_a_model_source_gets_the_reference() -> None:
    registry: Registry[Any] = Registry("model")
    registry.add("hub", built, cannot_serve=lambda reference: f"{reference!r} has no slash")
    with pytest.raises(PluginUnavailable, match="'demo' has no slash"):
        registry.build("hub", {}, BuildContext("demo"))
