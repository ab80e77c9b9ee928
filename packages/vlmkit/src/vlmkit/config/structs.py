"""What can be configured: the names, types and meanings of all settings of the core."""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any

import msgspec

from vlmkit.errors import ConfigError
from vlmkit.pipeline import PipelineSettings
from vlmkit.server.settings import ServerSettings

COMPONENTS = ("tokenizer", "vision_encoder", "engine", "scheduler", "sampler")
SECRET_WORDS = frozenset({"key", "keys", "token", "secret", "secrets", "password"})


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which provider makes a component, and that provider's own settings.

    Attributes:
        use: the provider's name; ``auto`` takes the best one that can serve the model here.
        settings: the other keys of the section, checked by the provider that is chosen.
    """

    use: str = "auto"
    settings: dict[str, Any] = {}

    def overridden(self, own: Mapping[str, Any]) -> "Component":
        """Return this section with a model's own keys over it.

        Keys that name another provider stand alone: these settings are not that provider's.
        """
        use = own.get("use", self.use)
        if not isinstance(use, str):
            raise ConfigError(f"use = {use!r} must be the name of a provider")
        given = {key: value for key, value in own.items() if key != "use"}
        base = self.settings if use == self.use else {}
        return Component(use=use, settings={**base, **given})


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several models.

    Attributes:
        model: a packaged name, a folder or a hub id.
        name: how clients call it; by default what ``model`` says.
        revision: the revision to take from the hub.
        tokenizer: keys that override ``[tokenizer]`` for this model.
        vision_encoder: keys that override ``[vision_encoder]`` for this model.
        engine: keys that override ``[engine]`` for this model.
        scheduler: keys that override ``[scheduler]`` for this model.
        sampler: keys that override ``[sampler]`` for this model.
    """

    model: str
    name: str | None = None
    revision: str | None = None
    tokenizer: dict[str, Any] = {}
    vision_encoder: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    scheduler: dict[str, Any] = {}
    sampler: dict[str, Any] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set.

    Attributes:
        model: a packaged name, a folder or a hub id; a folder that starts with a dot is relative
            to the config file.
        revision: the revision to take from the hub.
        models: several models, in place of ``model``.
        plugins: Python files that are plugins too, relative to the config file.
        tokenizer: what makes prompts of conversations.
        vision_encoder: what turns pictures into embeddings.
        engine: what runs the language model.
        scheduler: what decides who runs next.
        sampler: what chooses the tokens.
        pipeline: bounds of each pipeline.
        server: the HTTP server.
    """

    model: str | None = None
    revision: str | None = None
    models: tuple[ModelEntry, ...] = ()
    plugins: tuple[str, ...] = ()
    tokenizer: Component = Component()
    vision_encoder: Component = Component()
    engine: Component = Component()
    scheduler: Component = Component()
    sampler: Component = Component()
    pipeline: PipelineSettings = PipelineSettings()
    server: ServerSettings = ServerSettings()

    def entries(self) -> tuple[ModelEntry, ...]:
        """Return the models that are asked for; empty if none is.

        Raises:
            ConfigError: both ``model`` and ``models`` are set, or two models share a name.
        """
        if self.model is None:
            names = [entry.name or entry.model for entry in self.models]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"two models are called {twice!r}", hint="give each its own name")
            return self.models
        if self.models:
            raise ConfigError("both model and models are set", hint="keep one of them")
        return (ModelEntry(model=self.model, revision=self.revision),)

    def component(self, section: str, entry: ModelEntry | None = None) -> Component:
        """Return a component's section, with a model's own keys over it if one is given."""
        base: Component = getattr(self, section)
        return base if entry is None else base.overridden(getattr(entry, section))


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field's type is, ``X | None`` included; None for other types."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        found = [struct for part in typing.get_args(kind) if (struct := struct_of(part))]
        return found[0] if len(found) == 1 else None
    return None


def known_paths(struct: type[msgspec.Struct], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield the path of every setting of a struct and of the structs in it."""
    for field in msgspec.structs.fields(struct):
        path = (*prefix, field.encode_name)
        inner = struct_of(field.type)
        if inner is Component:
            yield (*path, "use")
        elif inner is not None:
            yield from known_paths(inner, path)
        else:
            yield path


def field_type(path: tuple[str, ...], struct: type[msgspec.Struct]) -> Any:
    """Return the type of the setting at a path; None where the core does not know it."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    kind = fields.get(path[0])
    if kind is None or len(path) == 1:
        return kind
    inner = struct_of(kind)
    return None if inner is None else field_type(path[1:], inner)


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return what each field means, by the ``Attributes:`` of the struct and of its bases."""
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


def is_secret(name: str, value: object) -> bool:
    """Tell whether a value must not be shown: by the last word of its name, switches excepted."""
    return name.rpartition("_")[2] in SECRET_WORDS and not isinstance(value, bool)
