"""Every kind of broken plugin is detected and named, and does not affect others.

The plugins are real distributions: each has a module and its metadata in a temporary folder.
"""

import builtins
import hashlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import _adapters
from pathlib import Path

import msgspec
import pytest

import vlmkit
from vlmkit.config import Config
from vlmkit.errors import ConfigError, PluginError, UnknownPlugin
from vlmkit.plugins import hookspecs, loader
from vlmkit.plugins.kinds import KINDS, Kind
from vlmkit.plugins.registry import BuildContext

SAMPLER = """
    from vlmkit.plugins.hookspecs import hookimpl

    VLMKIT_API = (1, 0)

    class Sampler:
        name = "{name}"

        def prepare(self, rows):
            return lambda logits: logits.argmax(-1)

    @hookimpl
    def vlmkit_register_samplers(registry):
        registry.add("{name}", lambda context: Sampler())
"""


def sampler(name: str) -> str:
    return SAMPLER.format(name=name)


def sampler_text(name: str) -> str:
    return textwrap.dedent(sampler(name))


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        name: str,
        source: str,
        *,
        version: str = "1.0",
        entry: str | None = None,
        metadata: bool = True,
    ) -> None:
        """Install a distribution of one module under one entry point."""
        entry = entry or name
        module = f"{self.folder.name}_{name.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[vlmkit]\n{entry} = {module}\n")
        if metadata:
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )

    @property
    def entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Return every entry point of the folder, found like those of installed distributions."""
        found = importlib.metadata.distributions(path=[str(self.folder)])
        return [e for d in found for e in d.entry_points if e.group == hookspecs.PROJECT]

    def load(
        self,
        *,
        files: Sequence[Path] = (),
        block: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> loader.Plugins:
        """Load the distributions of this folder."""
        return loader.load(entry_points=self.entry_points, files=files, block=block, only=only)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / f"site_{tmp_path.name}"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield Site(folder)
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def names(found: loader.Plugins) -> list[str]:
    return [provider.name for provider in found.samplers if provider.plugin != "vlmkit"]


def refusal(found: loader.Plugins, source: str) -> tuple[str, str]:
    """Return text and hint of the error of a refused plugin."""
    error = found.broken[source]
    assert isinstance(error, PluginError)
    return str(error), error.hint


# Plugins that work.


def test_a_plugin_provides_what_it_registers(site: Site) -> None:
    site.install("vlmkit-good", sampler("good"), version="2.3", entry="good")
    found = site.load()
    assert found.broken == {}
    assert found.samplers.build("good", {}, BuildContext()).name == "good"
    assert found.samplers.get("good").plugin == "vlmkit-good"


def test_every_plugin_is_listed_with_its_distribution_and_version(site: Site) -> None:
    site.install("vlmkit-good", sampler("good"), version="2.3", entry="good")
    listed = [(p.name, p.source, p.version, p.error, p.blocked) for p in site.load().found]
    assert listed == [
        ("builtin", "vlmkit", "", None, False),
        ("good", "vlmkit-good", "2.3", None, False),
    ]


def test_the_built_in_components_are_registered_by_the_same_hooks(site: Site) -> None:
    found = site.load()
    assert [p.name for p in found.schedulers] == ["continuous"]
    assert [p.name for p in found.samplers] == ["array"]


def test_installing_a_plugin_without_a_priority_changes_no_choice(site: Site) -> None:
    site.install("samples", sampler("aaa"))
    site.install("schedules", sampler("aaa").replace("samplers", "schedulers"))
    found = site.load()
    assert found.broken == {}
    assert found.samplers.choose("auto", None).name == "array"
    assert found.schedulers.choose("auto", None).name == "continuous"


def test_one_plugin_can_provide_every_kind(site: Site) -> None:
    hooks = "".join(
        f"@hookimpl\ndef {kind.hook}(registry):\n    registry.add('x', print)\n" for kind in KINDS
    )
    source = f"from vlmkit.plugins.hookspecs import hookimpl\nVLMKIT_API = (1, 0)\n{hooks}"
    site.install("vlmkit-all", source)
    found = site.load()
    assert found.broken == {}
    assert all(found.of(kind).get("x").plugin == "vlmkit-all" for kind in KINDS)
    assert all(getattr(found, kind.plural) is found.of(kind) for kind in KINDS)


def test_plugins_are_loaded_in_the_same_order_whatever_the_order_on_disk(site: Site) -> None:
    for name in ("b", "a", "c"):
        site.install(name, sampler(name))
    entries = site.entry_points
    listed = [
        [p.source for p in loader.load(entry_points=order).found]
        for order in (entries, entries[::-1])
    ]
    assert listed == [["vlmkit", "a", "b", "c"]] * 2


def test_loading_twice_gives_two_independent_results(site: Site) -> None:
    site.install("a", sampler("a"))
    first, second = site.load(), site.load()
    first.samplers.add("more", lambda _: None)  # type: ignore[arg-type, return-value]
    assert names(second) == ["a"]


# Plugins that own kinds.

OWNER = """
    from typing import Protocol
    from vlmkit.plugins.hookspecs import hookimpl
    from vlmkit.plugins.kinds import Kind

    VLMKIT_API = (1, 0)

    class WeightFormat(Protocol):
        def read(self, file: str) -> bytes: ...

    WEIGHT_FORMAT = Kind("weight_format", WeightFormat, "by name", "what reads weights")
    VLMKIT_KINDS = (WEIGHT_FORMAT,)

    class Engine:
        def __init__(self, read):
            self.read = read

    def build(context):
        formats = context.providers(WEIGHT_FORMAT)
        return Engine([formats.build(p.name, {}, context).read("a") for p in formats])

    @hookimpl
    def vlmkit_register_models(registry):
        registry.add("zeros", build)
"""
GUEST = """
    from vlmkit.plugins.hookspecs import hookimpl

    VLMKIT_API = (1, 0)

    class Zeros:
        def read(self, file):
            return bytes(2)

    @hookimpl
    def vlmkit_register_weight_formats(registry):
        registry.add("zeros", lambda context: Zeros())
"""


def in_use(found: loader.Plugins) -> object:
    """Return what the owner reads through the providers of its kind."""
    context = BuildContext(registries=found.by_kind)
    return found.models.get("zeros").build(context).read


def test_a_plugin_that_owns_a_kind_gets_its_providers_from_other_plugins(site: Site) -> None:
    site.install("a-guest", GUEST)  # before its owner
    site.install("owner", OWNER)
    found = site.load()
    assert found.broken == {}
    assert [p.plugin for p in found.weight_formats] == ["a-guest"]
    assert in_use(found) == [bytes(2)]


def test_providers_of_a_plugins_kind_must_match_its_protocol(site: Site) -> None:
    site.install("owner", OWNER)
    site.install("guest", GUEST.replace("read(self, file)", "read(self)"))
    with pytest.raises(PluginError, match=r"WeightFormat: 'read' takes \(\), but is called with"):
        in_use(site.load())


def test_a_hook_of_an_absent_kind_is_unknown_unless_it_is_optional(
    site: Site,
) -> None:
    site.install("guest", GUEST)
    site.install("patient", GUEST.replace("@hookimpl", "@hookimpl(optionalhook=True)"))
    assert list(site.load().broken) == ["guest"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("weight_format", "engine"), "there is a kind 'engine' already"),
        (("(WEIGHT_FORMAT,)", "(WEIGHT_FORMAT,) * 2"), "there is a kind 'weight_format' already"),
        (("(WEIGHT_FORMAT,)", "('weight_format',)"), "VLMKIT_KINDS holds 'weight_format'"),
        (("weight_format", "weight format"), "VLMKIT_KINDS holds Kind(name='weight format'"),
        (('"weight_format"', "7"), "VLMKIT_KINDS holds Kind(name=7"),
        (('WeightFormat, "by name"', 'print, "by name"'), "VLMKIT_KINDS holds Kind("),
        (('"by name"', '"by heart"'), "VLMKIT_KINDS holds Kind("),
        (("(WEIGHT_FORMAT,)", "7"), "VLMKIT_KINDS is of type 'int'"),
    ],
)
def test_an_invalid_kind_is_refused_with_its_plugin(
    site: Site, change: tuple[str, str], problem: str
) -> None:
    site.install("owner", OWNER.replace(*change))
    found = site.load()
    assert str(found.broken["owner"]).startswith(problem)
    assert "zeros" not in [p.name for p in found.models]
    assert found.kinds == KINDS


def test_a_kind_without_an_owner_is_refused_with_a_hint() -> None:
    with pytest.raises(PluginError, match="owns the kind 'codec'") as error:
        BuildContext().providers(Kind("codec", None, "by name", "what decodes"))
    assert error.value.hint == "name it in VLMKIT_KINDS of the plugin's module"


ASKING = OWNER.replace(
    'registry.add("zeros", build)',
    """
    def cannot_serve(reference, providers):
        objections = providers(WEIGHT_FORMAT).objections(reference)
        return None if None in objections.values() else f"no format: {objections}"

    registry.add("zeros", build, cannot_serve=cannot_serve)
    """.replace("\n    ", "\n        "),
)


def test_a_check_of_models_may_ask_the_providers_of_its_plugins_kinds(site: Site) -> None:
    site.install("owner", ASKING)
    assert site.load().models.objections("m") == {"zeros": "no format: {}"}
    answer = 'cannot_serve=lambda reference: "not m" if reference == "m" else None'
    site.install("a-guest", GUEST.replace("Zeros())", f"Zeros(), {answer})"))
    found = site.load()
    assert found.broken == {}
    assert found.models.objections("m") == {"zeros": "no format: {'zeros': 'not m'}"}
    assert found.models.choose("auto", "n").name == "zeros"


def test_a_check_that_asks_for_an_unknown_kind_is_an_objection(site: Site) -> None:
    site.install("owner", ASKING.replace("VLMKIT_KINDS = (WEIGHT_FORMAT,)", ""))
    [reason] = site.load().models.objections("m").values()
    assert reason == "its own check failed with PluginError"


def test_a_plugins_kind_with_a_plural_name_is_not_made_plural_again(site: Site) -> None:
    def renamed(source: str) -> str:
        return source.replace("weight_formats", "weights").replace("weight_format", "weights")

    site.install("guest", renamed(GUEST))
    site.install("owner", renamed(OWNER))
    assert in_use(site.load()) == [bytes(2)]


# Plugins that are broken.


def test_a_plugin_that_fails_to_import_does_not_stop_the_others(site: Site) -> None:
    site.install("bad", "import no_such_module")
    site.install("good", sampler("good"))
    found = site.load()
    assert names(found) == ["good"]
    assert isinstance(found.broken["bad"], ModuleNotFoundError)
    assert [p.source for p in found.found if p.error] == ["bad"]


def test_a_plugin_that_exits_at_import_does_not_end_the_process(site: Site) -> None:
    site.install("bad", "raise SystemExit(3)")
    site.install("good", sampler("good"))
    found = site.load()
    assert names(found) == ["good"]
    assert refusal(found, "bad")[0] == "the plugin tried to end the process"


def test_a_plugin_with_a_syntax_error_does_not_stop_the_others(site: Site) -> None:
    site.install("bad", "def (")
    site.install("good", sampler("good"))
    found = site.load()
    assert names(found) == ["good"]
    assert isinstance(found.broken["bad"], SyntaxError)


def test_a_missing_module_is_reported(site: Site) -> None:
    site.install("bad", sampler("x"))
    (site.folder / f"{site.folder.name}_bad.py").unlink()
    assert isinstance(site.load().broken["bad"], ModuleNotFoundError)


def test_a_distribution_without_metadata_is_named_by_its_entry_point(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strict(_adapters.Message):
        """Raises KeyError for absent keys, as Python 3.12 announces."""

        def __getitem__(self, key: str) -> str:
            if key not in self:
                raise KeyError(key)
            return super().__getitem__(key)

    monkeypatch.setattr(_adapters, "Message", Strict)
    site.install("nameless", sampler("x"), metadata=False)
    site.install("good", sampler("good"))
    assert names(site.load()) == ["good", "x"]


def test_a_misspelt_hook_is_refused_with_the_nearest_name(site: Site) -> None:
    site.install("typo", sampler("x").replace("_samplers", "_sampler"))
    found = site.load()
    assert names(found) == []
    assert refusal(found, "typo") == (
        "there is no hook 'vlmkit_register_sampler'",
        "did you mean 'vlmkit_register_samplers'?",
    )


def test_a_hook_of_another_project_is_refused_with_all_names(site: Site) -> None:
    site.install("odd", sampler("x").replace("vlmkit_register_samplers", "pytest_configure"))
    text, hint = refusal(site.load(), "odd")
    assert text == "there is no hook 'pytest_configure'"
    assert hint.startswith("known: vlmkit_register_tokenizers, vlmkit_register_media_encoders,")


def test_a_hook_with_a_default_is_refused(site: Site) -> None:
    site.install("default", sampler("x").replace("(registry)", "(registry=None)"))
    assert refusal(site.load(), "default") == (
        (
            "hook 'vlmkit_register_samplers' gives registry a default; pluggy would never pass "
            "the value"
        ),
        "remove the default",
    )


@pytest.mark.parametrize("arguments", ["registry, settings", "reg", ""])
def test_a_hook_with_wrong_arguments_is_refused(site: Site, arguments: str) -> None:
    site.install("args", sampler("x").replace("(registry)", f"({arguments})"))
    found = site.load()
    assert names(found) == []
    assert refusal(found, "args") == (
        f"hook 'vlmkit_register_samplers' takes ({arguments}), but is given (registry)",
        "name its only argument registry",
    )


def test_a_hook_without_its_marker_is_refused(site: Site) -> None:
    site.install("unmarked", sampler("x").replace("@hookimpl", ""))
    assert refusal(site.load(), "unmarked") == (
        "hook 'vlmkit_register_samplers' is not marked",
        "put @hookimpl above it",
    )


def test_one_unmarked_hook_among_marked_ones_is_refused(site: Site) -> None:
    more = "\n    def vlmkit_register_engines(registry):\n        pass\n"
    site.install("half", sampler("x") + more)
    found = site.load()
    assert refusal(found, "half")[0] == "hook 'vlmkit_register_engines' is not marked"
    assert names(found) == []


def test_a_hook_can_have_another_name_if_its_marker_states_the_hook(site: Site) -> None:
    source = sampler("x").replace("@hookimpl", '@hookimpl(specname="vlmkit_register_samplers")')
    site.install("named", source.replace("def vlmkit_register_samplers", "def register"))
    assert names(site.load()) == ["x"]


def test_a_plugin_without_any_hook_is_refused(site: Site) -> None:
    site.install("empty", "VLMKIT_API = 1")
    assert refusal(site.load(), "empty") == (
        "the plugin implements no hook",
        (
            "known: vlmkit_register_tokenizers, vlmkit_register_media_encoders, "
            "vlmkit_register_engines, vlmkit_register_schedulers, vlmkit_register_samplers, "
            "vlmkit_register_proposers, vlmkit_register_constraints, vlmkit_register_observers, "
            "vlmkit_register_media_loaders, vlmkit_register_runners, vlmkit_register_models, "
            "vlmkit_register_commands"
        ),
    )


TABLES = """
import msgspec
from vlmkit.plugins.kinds import Kind

class Own(msgspec.Struct): ...

ONE = Kind("codec", None, "one", "what packs numbers")
VLMKIT_API = 1
VLMKIT_KINDS = (ONE,)
VLMKIT_TABLES = {tables}
"""


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[Own]", "VLMKIT_TABLES is of type 'list'"),
        ("{7: Own}", "VLMKIT_TABLES has 7"),
        ("{'a b': Own}", "VLMKIT_TABLES has 'a b'"),
        ("{'own': Own()}", "VLMKIT_TABLES has 'own'"),
        ("{'codec': ONE}", "VLMKIT_TABLES has 'codec'"),
        ("{'engine': Own}", "there is a table 'engine' in the config already"),
        ("{'pipeline': Own}", "there is a table 'pipeline' in the config already"),
    ],
)
def test_an_invalid_table_of_a_plugin_is_refused(site: Site, tables: str, message: str) -> None:
    site.install("tables", TABLES.replace("{tables}", tables))
    assert refusal(site.load(), "tables")[0].startswith(message)


def test_two_plugins_cannot_own_one_table(site: Site) -> None:
    for number in (1, 2):
        text = TABLES.replace('"codec"', f'"codec_{number}"').replace("{tables}", "{'own': Own}")
        site.install(f"tables-{number}", text)
    assert refusal(site.load(), "tables-2")[0] == "there is a table 'own' in the config already"


@pytest.mark.parametrize(
    "owned",
    [
        "VLMKIT_TABLES = {'server': Own}",
        "VLMKIT_TABLES = {'monitors': Own}",
        "VLMKIT_KINDS = (Kind('monitor', None, 'all', 'what looks on'),)",
    ],
)
def test_a_plugin_cannot_own_a_table_or_kind_of_a_vlmkit_distribution(
    owned: str, site: Site
) -> None:
    site.install("taker", TABLES.replace("VLMKIT_TABLES = {tables}", owned))
    message, _ = refusal(site.load(), "taker")
    assert re.fullmatch("'(server|monitors)' belongs to vlmkit-server", message)


def test_absent_vlmkit_distributions_can_be_listed(site: Site) -> None:
    site.install("fine", sampler("x"))
    assert not site.load(only=["fine", "vlmkit-server", "vlmkit-testing"]).errors


def test_every_table_of_the_core_is_reserved() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(Config)}
    assert fields - loader.Plugins().sections.keys() == loader.RESERVED_TABLES


def series() -> str:
    return ".".join(vlmkit.__version__.split(".")[:2])


@pytest.mark.parametrize("version", ["0.0.9", "0.2.0", "1.0"])
@pytest.mark.parametrize("part", ["vlmkit-server", "vlmkit-testing"])
def test_a_vlmkit_distribution_of_another_version_is_refused_with_both_versions(
    part: str, version: str, site: Site
) -> None:
    site.install(part, sampler("x"), version=version)
    message, hint = refusal(site.load(), part)
    assert message == f"{part} {version} does not go with vlmkit-core {vlmkit.__version__}"
    assert hint == f"install {part} {series()}, or another core"


def test_patch_versions_of_vlmkit_distributions_are_compatible(site: Site) -> None:
    site.install("vlmkit-server", sampler("x"), version=f"{series()}.99")
    assert not site.load().broken


def test_a_hook_for_a_kind_of_the_server_says_what_to_install(site: Site) -> None:
    site.install("watch", sampler("x").replace("_samplers", "_monitors"))
    message, hint = refusal(site.load(), "watch")
    assert message == (
        "hook 'vlmkit_register_monitors' is of a kind that vlmkit-server owns, which is not loaded"
    )
    assert "vlmkit-server" in hint


def test_a_hook_that_returns_a_value_is_refused(site: Site) -> None:
    site.install("returns", sampler("x").replace("registry.add", "return dict.fromkeys"))
    assert refusal(site.load(), "returns") == (
        "hook 'vlmkit_register_samplers' returned a value, which is ignored",
        "call registry.add",
    )


def test_a_plugin_that_raises_half_way_registers_nothing(site: Site) -> None:
    site.install("half", sampler("x") + "        raise RuntimeError('boom')\n")
    found = site.load()
    assert names(found) == []
    assert str(found.broken["half"]) == "boom"


def test_a_plugin_whose_second_hook_fails_registers_nothing_of_its_first(site: Site) -> None:
    more = "\n    @hookimpl\n    def vlmkit_register_models(registry):\n        raise KeyError\n"
    site.install("half", sampler("x") + more)
    found = site.load()
    assert names(found) == []
    assert isinstance(found.broken["half"], KeyError)


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("", "does not say VLMKIT_API"),
        ("VLMKIT_API = 2", "has VLMKIT_API = 2"),
        ("VLMKIT_API = (2, 0)", "has VLMKIT_API = (2, 0)"),
        ("VLMKIT_API = (0, 9)", "has VLMKIT_API = (0, 9)"),
        ("VLMKIT_API = (1, 1)", "has VLMKIT_API = (1, 1)"),
        ("VLMKIT_API = '1'", "has VLMKIT_API = '1', which is not (major, minor)"),
        ("VLMKIT_API = (1, 0, 0)", "has VLMKIT_API = (1, 0, 0), which is not (major, minor)"),
        ("VLMKIT_API = True", "has VLMKIT_API = True, which is not (major, minor)"),
    ],
)
def test_a_plugin_for_another_api_version_is_refused(site: Site, line: str, stated: str) -> None:
    site.install("old", sampler("x").replace("VLMKIT_API = (1, 0)", line))
    assert refusal(site.load(), "old") == (
        f"the plugin {stated}; this vlmkit offers (1, 0)",
        (
            "install matching versions of both, or state VLMKIT_API = (1, 0) once the plugin "
            "follows docs/reference/stability.md"
        ),
    )


@pytest.mark.parametrize(
    ("offered", "stated"), [((1, 0), "1"), ((1, 0), "(1, 0)"), ((1, 3), "(1, 2)"), ((1, 3), "1")]
)
def test_a_plugin_for_an_older_minor_version_is_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch, offered: tuple[int, int], stated: str
) -> None:
    monkeypatch.setattr(loader, "API_VERSION", offered)
    site.install("older", sampler("x").replace("(1, 0)", stated))
    assert names(site.load()) == ["x"]


# Plugins that use the same name.


def test_the_distribution_chooses_between_two_plugins_with_the_same_name(site: Site) -> None:
    site.install("vlmkit-one", sampler("x"))
    site.install("vlmkit-two", sampler("x"))
    found = site.load()
    assert found.broken == {}
    for word in ("vlmkit-two:x", "Vlmkit_Two:x"):
        assert found.samplers.get(word).plugin == "vlmkit-two"
        assert found.samplers.build(word, {}, BuildContext()).name == "x"
    with pytest.raises(ConfigError) as error:
        found.samplers.get("x")
    assert str(error.value) == "sampler 'x' is offered by 'vlmkit-one' and 'vlmkit-two'"
    assert error.value.hint == "say which: 'vlmkit-one:x' or 'vlmkit-two:x'"
    assert [found.samplers.key(p) for p in found.samplers] == [
        "array",
        "vlmkit-one:x",
        "vlmkit-two:x",
    ]
    assert set(found.samplers.objections(None)) == {"array", "vlmkit-one:x", "vlmkit-two:x"}


def test_a_provider_can_be_named_with_its_distribution_even_if_the_name_is_unique(
    site: Site,
) -> None:
    site.install("vlmkit-one", sampler("x"))
    found = site.load()
    assert found.samplers.get("vlmkit-one:x") is found.samplers.get("x")
    with pytest.raises(UnknownPlugin) as error:
        found.samplers.get("vlmkit-two:x")
    assert error.value.hint == "installed: array, x"


def test_two_files_with_the_same_provider_are_distinguished_by_file_name(
    site: Site, tmp_path: Path
) -> None:
    files = [write(tmp_path / f"{name}.py", sampler("x")) for name in ("one", "two")]
    found = site.load(files=files)
    assert found.samplers.get("two:x").plugin == str(files[1])
    assert found.samplers.get(f"{files[0]}:x").plugin == str(files[0])


def test_no_plugin_replaces_a_built_in_component(site: Site) -> None:
    site.install("usurper", sampler("array"))
    found = site.load()
    assert found.broken == {}
    assert found.samplers.get("array").plugin == "vlmkit"
    assert found.samplers.choose("auto", None).plugin == "vlmkit"
    assert found.samplers.get("usurper:array").plugin == "usurper"


def test_two_distributions_can_use_the_same_entry_point_name(site: Site) -> None:
    site.install("vlmkit-one", sampler("x"), entry="torch")
    site.install("vlmkit-two", sampler("y"), entry="torch")
    found = site.load()
    assert (names(found), found.broken) == (["x", "y"], {})


def test_blocking_a_distribution_keeps_another_with_the_same_entry_point(site: Site) -> None:
    site.install("vlmkit-one", sampler("x"), entry="torch")
    site.install("vlmkit-two", sampler("y"), entry="torch")
    found = site.load(block=["vlmkit-one"])
    assert names(found) == ["y"]
    assert found.broken == {}


def test_a_plugin_called_builtin_does_not_replace_the_built_in_one(site: Site) -> None:
    site.install("third-party", sampler("x"), entry="builtin")
    found = site.load()
    assert [p.name for p in found.samplers] == ["array", "x"]


# Blocked plugins.


@pytest.mark.parametrize("word", ["short", "vlmkit-long", "Vlmkit_Long", " vlmkit.long "])
def test_a_plugin_is_blocked_by_either_name_in_any_spelling(site: Site, word: str) -> None:
    site.install("vlmkit-long", "raise RuntimeError('imported')", entry="short")
    found = site.load(block=[word])
    assert found.broken == {}
    assert [(p.name, p.blocked) for p in found.found] == [("builtin", False), ("short", True)]


def test_an_empty_block_list_blocks_nothing(site: Site) -> None:
    site.install("good", sampler("good"))
    assert names(site.load(block=["", " "])) == ["good"]


def test_the_built_in_components_can_be_blocked(site: Site) -> None:
    site.install("mine", sampler("array"))
    found = site.load(block=["builtin"])
    assert found.samplers.get("array").plugin == "mine"


# Listed plugins.


@pytest.mark.parametrize("word", ["vlmkit-wanted", "Vlmkit_Wanted"])
def test_a_plugin_outside_the_list_is_not_imported(site: Site, word: str) -> None:
    site.install("vlmkit-wanted", sampler("wanted"), entry="one")
    site.install("vlmkit-other", "import os\nos.environ['IMPORTED'] = 'other'", entry="two")
    found = site.load(only=[word])
    assert names(found) == ["wanted"]
    assert [(p.source, p.is_loaded) for p in found.found] == [
        ("vlmkit", True),
        ("vlmkit-other", False),
        ("vlmkit-wanted", True),
    ]
    assert "IMPORTED" not in os.environ
    assert names(site.load(only=[])) == []


def test_a_distribution_is_not_listed_by_the_name_of_its_entry_point(site: Site) -> None:
    site.install("vlmkit-bad", sampler("bad"), entry="vlmkit-good")
    site.install("vlmkit-good", sampler("good"))
    assert names(site.load(only=["vlmkit-good"])) == ["good"]


def test_a_listed_distribution_that_is_absent_is_reported_with_the_installed_ones(
    site: Site,
) -> None:
    site.install("vlmkit-good", sampler("good"))
    with pytest.raises(ConfigError, match=r"plugins\.only names 'vlmkit-god'") as caught:
        site.load(only=["vlmkit-god"])
    assert caught.value.hint == "did you mean 'vlmkit-good'?"
    with pytest.raises(ConfigError) as caught:
        site.load(only=["numpy"])
    assert caught.value.hint == "there are: vlmkit-good"


def test_a_plugin_is_identified_by_the_hash_of_its_files(site: Site, tmp_path: Path) -> None:
    site.install("vlmkit-good", sampler("good"))
    (info,) = site.folder.glob("*.dist-info")
    assert site.load().found[1].digest() == ""
    (info / "RECORD").write_text("good.py,sha256=abc,3\n")
    expected = hashlib.sha256(b"good.py,sha256=abc,3\n").hexdigest()
    assert site.load().found[1].digest() == expected
    file = tmp_path / "own.py"
    file.write_text(sampler("own"))
    digest = site.load(files=[file]).found[-1].digest()
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_built_in_plugin_is_identified_by_the_files_of_the_core(site: Site) -> None:
    (builtin, *_) = site.load().found
    assert (builtin.name, builtin.source) == ("builtin", "vlmkit")
    record = importlib.metadata.distribution("vlmkit-core").read_text("RECORD")
    assert record
    assert builtin.digest() == hashlib.sha256(record.encode()).hexdigest()


# Local files.


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source))
    return path


def test_a_file_is_a_plugin(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path / "my_sampler.py", sampler("mine"))
    found = site.load(files=[file])
    assert names(found) == ["mine"]
    assert found.samplers.get("mine").plugin == str(file)


def test_a_file_can_define_dataclasses(site: Site, tmp_path: Path) -> None:
    source = """
    import dataclasses

    @dataclasses.dataclass
    class Settings:
        width: "int" = 1
    """
    file = write(tmp_path / "with_class.py", source + sampler("mine"))
    assert names(site.load(files=[file])) == ["mine"]


def test_a_file_that_does_not_exist_is_reported(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "absent.py"
    assert refusal(site.load(files=[file]), str(file)) == (
        f"plugin file {str(file)!r} does not exist",
        "",
    )


def test_a_file_that_is_no_python_is_reported(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path / "notes.txt", "hello")
    assert refusal(site.load(files=[file]), str(file)) == (
        f"plugin file {str(file)!r} is not a Python file",
        "",
    )


def test_a_file_that_fails_leaves_no_module_behind(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path / "half_way.py", "raise RuntimeError('boom')")
    assert str(site.load(files=[file]).broken[str(file)]) == "boom"
    assert not [name for name in sys.modules if "half_way" in name]


def test_two_files_with_the_same_name_in_two_folders_both_load(site: Site, tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name / "sampler.py", sampler(name)))
    assert names(site.load(files=files)) == ["one", "two"]


def test_a_file_can_have_the_name_of_an_installed_plugin(site: Site, tmp_path: Path) -> None:
    site.install("torch", sampler("installed"))
    file = write(tmp_path / "torch.py", sampler("mine"))
    assert names(site.load(files=[file])) == ["installed", "mine"]


LATER = """
    from vlmkit.plugins.hookspecs import hookimpl

    VLMKIT_API = (1, 0)

    def build(context):
        import helper_of_mine.inner as inner
        from helper_of_mine import inner as same
        assert same is inner

        class Sampler:
            name = inner.NAME

            def prepare(self, rows):
                return lambda logits: logits.argmax(-1)

        return Sampler()

    @hookimpl
    def vlmkit_register_samplers(registry):
        registry.add("mine", build)
"""


def test_a_file_can_import_modules_of_its_folder_early_or_late(site: Site, tmp_path: Path) -> None:
    for name in ("one", "two"):  # each folder has modules of the same names
        folder = tmp_path / name
        (folder / "helper_of_mine").mkdir(parents=True)
        write(folder / "name_of_mine.py", f"NAME = {name!r}")
        write(folder / "helper_of_mine" / "__init__.py", "")
        write(folder / "helper_of_mine" / "inner.py", "from name_of_mine import NAME")
        write(folder / "plain.py", "from .name_of_mine import NAME\n" + textwrap.dedent(LATER))
    before = list(sys.path)
    found = site.load(files=[tmp_path / name / "plain.py" for name in ("one", "two")])
    assert found.broken == {}
    made = [p.build(BuildContext()).name for p in found.samplers if p.plugin != "vlmkit"]
    assert made == ["one", "two"]
    assert sys.path == before
    assert not {"name_of_mine", "helper_of_mine"} & sys.modules.keys()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("name_of_mine")


def test_installed_modules_take_precedence_over_modules_of_the_folder(
    site: Site, tmp_path: Path
) -> None:
    write(tmp_path / "json.py", "raise RuntimeError('not this one')")
    file = write(tmp_path / "plain.py", "import json\nassert json.dumps\n" + sampler_text("mine"))
    assert names(site.load(files=[file])) == ["mine"]


def test_a_missing_import_of_a_module_of_the_folder_is_named(site: Site, tmp_path: Path) -> None:
    write(tmp_path / "helper_of_mine.py", "import no_such_library")
    file = write(tmp_path / "plain.py", "import helper_of_mine\n" + sampler_text("mine"))
    assert "'no_such_library'" in str(site.load(files=[file]).broken[str(file)])
    write(tmp_path / "helper_of_mine.py", "")
    assert names(site.load(files=[file])) == ["mine"]


def test_a_folder_is_a_plugin(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "my_plugin"
    folder.mkdir()
    write(folder / "name.py", "NAME = 'inner'")
    source = "from .name import NAME\nfrom my_plugin import name\n" + sampler_text("mine")
    write(folder / "__init__.py", source + "assert name.NAME == NAME == 'inner'\n")
    found = site.load(files=[folder])
    assert found.broken == {}
    assert found.samplers.get("my_plugin:mine").plugin == str(folder)
    digest = found.found[-1].digest()
    assert digest == site.load(files=[folder]).found[-1].digest() != ""
    write(
        folder / "name.py", "NAME = 'of another length'"
    )  # with the same length, Python would use the old bytecode
    changed = site.load(files=[folder])
    assert changed.found[-1].digest() != digest
    assert isinstance(changed.broken[str(folder)], AssertionError)


def test_a_folder_that_is_no_package_is_reported(site: Site, tmp_path: Path) -> None:
    assert refusal(site.load(files=[tmp_path]), str(tmp_path)) == (
        f"plugin folder {str(tmp_path)!r} has no __init__.py",
        f"put the hooks into {tmp_path.name}/__init__.py, or name the files themselves",
    )


# Effects on the process.


@pytest.mark.posix
def test_ctrl_c_during_an_import_does_not_count_as_a_failure_of_the_plugin(site: Site) -> None:
    site.install("slow", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 // 0")
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            site.load()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_can_print_while_plugins_are_loaded(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install(
        "waits",
        "import builtins, threading\nprint('theirs')\n"
        "builtins.go_on.set()\nbuiltins.has_gone.wait()\n" + sampler_text("x"),
    )
    go_on, has_gone = threading.Event(), threading.Event()
    builtins.go_on, builtins.has_gone = go_on, has_gone  # type: ignore[attr-defined]

    def own() -> None:
        go_on.wait()
        print("ours")
        has_gone.set()

    thread = threading.Thread(target=own)
    thread.start()
    (_, plugin) = site.load().found
    thread.join()
    del builtins.go_on, builtins.has_gone  # type: ignore[attr-defined]
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("ours\n", "theirs\n")
    assert plugin.error is None
    assert plugin.remarks == ("printed to standard output; it went to standard error",)


def test_an_unknown_name_in_vlmkit_block_is_reported_with_the_nearest_name(site: Site) -> None:
    site.install("vlmkit-good", sampler("good"))
    assert site.load(block=["vlmkit-good", ""]).notes == []
    assert site.load(block=["vlmkit_god", "zzz"]).notes == [
        (
            "VLMKIT_BLOCK names 'vlmkit_god', and no plugin or distribution has that "
            "name; did you mean 'vlmkit-good'?"
        ),
        "VLMKIT_BLOCK names 'zzz', and no plugin or distribution has that name",
    ]


def test_a_file_that_is_listed_twice_is_loaded_once(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path / "my_sampler.py", sampler("mine"))
    found = site.load(files=[file, file])
    assert (names(found), found.broken) == (["mine"], {})


def test_a_file_can_be_blocked(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path / "my_sampler.py", sampler("mine"))
    assert names(site.load(files=[file], block=["my_sampler"])) == []


# Imports.

HEAVY = {"torch", "transformers", "onnxruntime", "tokenizers", "huggingface_hub", "safetensors"}


def loaded_by(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    return {name.split(".")[0] for name in out.stdout.split()}


def test_loading_every_installed_plugin_imports_no_heavy_library() -> None:
    code = "from vlmkit.plugins import loader\nassert loader.load().found"
    assert not loaded_by(code) & HEAVY


def test_loading_plugins_imports_no_numpy_pillow_or_server() -> None:
    code = "from vlmkit.plugins import loader\nloader.load(entry_points=[])"
    assert not loaded_by(code) & {"numpy", "PIL", "litestar", "uvicorn", "rich", "httpx2"}


def test_importing_the_whole_core_imports_no_heavy_library() -> None:
    code = """
import pkgutil, vlmkit
for module in pkgutil.walk_packages(vlmkit.__path__, "vlmkit."):
    if not module.name.startswith("vlmkit_testing"):
        __import__(module.name)
"""
    assert not loaded_by(code) & (HEAVY | {"pytest", "hypothesis"})
