"""The names, types and descriptions of all settings of the core."""

import functools
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from vlmkit.errors import ConfigError
from vlmkit.kit.model_uri import shown
from vlmkit.plugins.kinds import KINDS, Kind, Table
from vlmkit.settings.bounds import Positive
from vlmkit.settings.fetch import FetchSettings
from vlmkit.settings.lifecycle import IdleSeconds, OnFailure, When
from vlmkit.settings.paths import ModelReference
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.plugins import PluginSettings

S = TypeVar("S", bound=msgspec.Struct)

SECTIONS: dict[str, Kind[Any]] = {kind.section: kind for kind in KINDS if kind.section}
"""The kind of provider that each section of a pipeline selects, by section."""
COMPONENTS = tuple(name for name, kind in SECTIONS.items() if kind.mode == "one")
GROUPS = tuple(name for name, kind in SECTIONS.items() if kind.mode == "all")
ModelAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class AliasEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A further name of a model that sets request fields of plugins.

    Attributes:
        name: the name for clients.
        fields: the values of plugins' request fields for each request under this name, by field.
            A client may set other fields, but not these.
    """

    name: ModelAlias
    fields: dict[str, dict[str, Any]]


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider of a component, and its settings.

    Attributes:
        use: the provider's name; ``auto`` uses the best one that can serve the model here,
            ``none`` disables the component where that is possible.
        settings: the other keys of the section, checked by the chosen provider.
    """

    use: str = "auto"
    settings: dict[str, Any] = {}

    def overridden(self, keys: Mapping[str, Any]) -> "Component":
        """Return this section, overridden by the keys of a model's own section.

        If the keys name another provider, the settings of this section do not apply to it.
        """
        use = keys.get("use", self.use)
        given = {key: value for key, value in keys.items() if key != "use"}
        base = self.settings if use == self.use else {}
        return Component(use=use, settings={**base, **given})


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The providers of a kind that are used together, and the settings of each.

    Attributes:
        use: names of the providers to use; ``auto`` stands for all that can serve the model here.
        settings: a table of settings for each provider, by its name.
    """

    use: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = {}


def _default(section: str) -> Component:
    return Component(use=SECTIONS[section].default)


def _default_group(kind: Kind[Any]) -> Group:
    return Group() if kind.is_optional else Group(use=("auto",))


def _sections(name: str, fields: Iterable[tuple[str, Any, Any, str]]) -> Any:
    """Return a struct with a field for each section of providers; see :data:`SECTIONS`."""
    rows = list(fields)
    meanings = "".join(f"    {field}: {meaning}\n" for field, _, _, meaning in rows)
    return msgspec.defstruct(
        name,
        [(field, kind, default) for field, kind, default, _ in rows],
        namespace={"__doc__": f"Sections.\n\nAttributes:\n{meanings}"},
        frozen=True,
        kw_only=True,
    )


if TYPE_CHECKING:  # type checkers do not see structs created at run time; `component` is typed

    class OwnSections(msgspec.Struct, frozen=True):
        """A table of keys for each component."""

    class ProviderSections(msgspec.Struct, frozen=True):
        """A section for each kind that has one."""

else:
    OwnSections = _sections(
        "OwnSections",
        [
            (name, dict[str, Any], {}, f"keys that override ``[{name}]`` for this model.")
            for name in COMPONENTS
        ],
    )
    ProviderSections = _sections(
        "ProviderSections",
        [
            *(
                (name, Component, _default(name), f"{SECTIONS[name].meaning}.")
                for name in COMPONENTS
            ),
            *(
                (name, Group, _default_group(SECTIONS[name]), f"{SECTIONS[name].meaning}.")
                for name in GROUPS
            ),
        ],
    )


class ModelEntry(OwnSections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several models.

    Attributes:
        model: a packaged name, a folder, a hub id, or a URI that a plugin supports.
        name: its name for clients; by default the value of ``model``, or the last part of a path or
            URI.
        aliases: further names for clients; as ``{name = "NAME", fields = {...}}``, a name that sets
            request fields of plugins.
        revision: the revision to download from the hub.
        projector: the name of the file with the vision tower, of several beside a GGUF file.
        load: when a server loads it; ``server.fleet.load`` applies when None.
        idle_unload_s: time without requests after which a server unloads it;
            ``server.fleet.idle_unload_s`` applies when None.
        memory_bytes: its share of ``server.fleet.memory_budget_bytes``; the size of its weight
            files when None.
        on_engine_failure: what a server does when its engine fails for good;
            ``server.fleet.on_engine_failure`` applies when None.
    """

    model: ModelReference
    name: str | None = None
    aliases: tuple[ModelAlias | AliasEntry, ...] = ()
    revision: str | None = None
    projector: str | None = None
    load: When | None = None
    idle_unload_s: IdleSeconds | None = None
    memory_bytes: Positive | None = None
    on_engine_failure: OnFailure | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model, the main name first."""
        return (self.name or shown(self.model), *self.alias_names)

    @property
    def alias_names(self) -> tuple[str, ...]:
        """The further names of the model."""
        return tuple(each if isinstance(each, str) else each.name for each in self.aliases)

    @property
    def alias_fields(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The request fields that further names set, by name."""
        return {each.name: each.fields for each in self.aliases if isinstance(each, AliasEntry)}


class Config(ProviderSections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the core; plugins add tables of their own.

    Attributes:
        model: a packaged name, a folder, a hub id, or a URI that a plugin supports; a folder that
            starts with a dot is relative to the config file.
        revision: the revision to download from the hub.
        projector: the name of the file with the vision tower, of several beside a GGUF file.
        models: several models, instead of ``model``.
        plugins: the plugins to load.
        pipeline: limits of each pipeline.
        fetch: fetching images by URL.
    """

    model: ModelReference | None = None
    revision: str | None = None
    projector: str | None = None
    models: tuple[ModelEntry, ...] = ()
    plugins: PluginSettings = PluginSettings()
    pipeline: PipelineSettings = PipelineSettings()
    fetch: FetchSettings = FetchSettings()

    def entries(self) -> tuple[ModelEntry, ...]:
        """Return the configured models; empty if there are none.

        Raises:
            ConfigError: both ``model`` and ``models`` are set, or two models share a name.
        """
        if self.model is None:
            names = [name for entry in self.models for name in entry.names]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"two models are called {twice!r}", hint="give each its own name")
            return self.models
        if self.models:
            raise ConfigError("both model and models are set", hint="keep one of them")
        return (ModelEntry(model=self.model, revision=self.revision, projector=self.projector),)

    def component(self, section: str, entry: ModelEntry | None = None) -> Component:
        """Return a component's section, overridden by that of a model if one is given.

        Raises:
            ConfigError: ``use`` of the model's own section is not text.
        """
        base: Component = getattr(self, section)
        if entry is None:
            return base
        keys = getattr(entry, section)
        if not isinstance(use := keys.get("use", ""), str):
            raise ConfigError(
                f"{section}.use = {use!r} of model {entry.names[0]!r}: expected text",
                hint=f'write the name of a provider, such as {section}.use = "auto"',
            )
        return base.overridden(keys)

    def group(self, section: str) -> Group:
        """Return the section of a kind whose providers are all used.

        It is empty if the owner of the kind was not loaded when the config was read.
        """
        chosen: Group = getattr(self, section, Group())
        return chosen

    def table(self, name: str, kind: type[S]) -> S:
        """Return a table that a plugin owns; its defaults if that plugin is not loaded."""
        found = getattr(self, name, None)
        return found if isinstance(found, kind) else kind()


def with_tables(tables: Mapping[str, Table]) -> type[Config]:
    """Return the config's type with the tables of plugins; cached for equal tables."""
    return _with_tables(tuple(tables.items())) if tables else Config


@functools.cache
def _with_tables(tables: tuple[tuple[str, Table], ...]) -> type[Config]:
    rows: list[tuple[str, type[Any], Any]] = []
    meanings = ""
    for name, table in tables:
        if isinstance(table, Kind):
            rows.append((name, Group, _default_group(table)))
            meanings += f"    {name}: {table.meaning}.\n"
        else:
            rows.append((name, table, table()))
            meanings += f"    {name}: {_summary(table)}.\n"
    config: Any = msgspec.defstruct(
        "Config",
        rows,
        bases=(Config,),
        namespace={"__doc__": f"All settings.\n\nAttributes:\n{meanings}"},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[Config], config)


def _summary(struct: type[msgspec.Struct]) -> str:
    first = (struct.__doc__ or "").partition("\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct type of a field, also of ``X | None``; None for other types."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        found = [struct for part in typing.get_args(kind) if (struct := struct_of(part))]
        return found[0] if len(found) == 1 else None
    return None


def sections_of(config: type[Config]) -> list[str]:
    """Return the sections of a config that choose providers."""
    fields = msgspec.structs.fields(config)
    return [field.encode_name for field in fields if field.type in (Component, Group)]


def known_paths(struct: type[msgspec.Struct], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield the path of every setting of a struct, including nested structs."""
    for field in msgspec.structs.fields(struct):
        path = (*prefix, field.encode_name)
        inner = struct_of(field.type)
        if inner in (Component, Group):
            yield (*path, "use")
        elif inner is not None:
            yield from known_paths(inner, path)
        else:
            yield path


def field_type(path: tuple[str, ...], struct: type[msgspec.Struct]) -> Any:
    """Return the type of the setting at a path; None if the core does not know it."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    kind = fields.get(path[0])
    if kind is None or len(path) == 1:
        return kind
    inner = struct_of(kind)
    return None if inner is None else field_type(path[1:], inner)


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field, from ``Attributes:`` of the struct and its bases."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        name = ""
        text = inspect.cleandoc(base.__doc__ or "").replace("``", "`")
        _, _, section = text.partition("Attributes:\n")
        for line in section.splitlines():
            if entry := re.match(r" {4}(\w+): (.*)", line):
                name = entry[1]
                found[name] = entry[2]
            elif line.startswith(" " * 8) and name:
                found[name] += f" {line.strip()}"
            else:
                break
    return found
