"""Where sections meet plugins: whether what is set for a provider is what that provider takes."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vlmkit.config.layers import Keys, Leaf, nested
from vlmkit.config.paths import NamedPath, anchored, expanded, named_paths
from vlmkit.config.reading import LayeredConfig
from vlmkit.config.structs import COMPONENTS, SECTIONS, Component, Config, Group, ModelEntry
from vlmkit.errors import ConfigError, PluginError, PluginUnavailable, VlmkitError
from vlmkit.kit.one_line import named, text_of
from vlmkit.plugins.kinds import MEDIA_LOADER, Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext, Provider, Registry
from vlmkit.running.faults.attribution import ComponentNames
from vlmkit.settings.plugins import PluginSettings

if TYPE_CHECKING:
    from vlmkit.interfaces.media_loader import MediaLoader


def registry_of(plugins: Plugins, section: str) -> Registry[Any]:
    """Return the registry that a section of the config selects from."""
    return plugins.of(plugins.sections[section])


def groups_of(plugins: Plugins) -> list[str]:
    """Return the sections of the config whose providers are all used."""
    return [name for name, kind in plugins.sections.items() if kind.mode == "all"]


def is_left_out(section: str, component: Component) -> bool:
    """Tell whether a section says that its component is done without.

    Raises:
        ConfigError: that is not possible, or there are settings for what is not there.
    """
    if component.use != "none":
        return False
    if not SECTIONS[section].takes_none:
        raise ConfigError(f"{section}.use = 'none': a pipeline cannot do without")
    if component.settings:
        key = next(iter(component.settings))
        raise ConfigError(
            f"{section}.{key} is set, and {section}.use is 'none'", hint=f"set {section}.use too"
        )
    return True


def with_provider_paths(layered: LayeredConfig, plugins: Plugins) -> LayeredConfig:
    """Return a config whose paths in settings of providers are resolved, too.

    Which of these are paths, only the plugins know, so this follows once they are loaded.
    """
    config, groups = layered.config, groups_of(plugins)

    def resolve(leaf: Leaf) -> Leaf:
        section, *keys = leaf.path
        if section == "models" and isinstance(leaf.value, list | tuple):
            entries = [_resolved_entry(entry, config, plugins, leaf.folder) for entry in leaf.value]
            return replace(leaf, value=entries)
        if section in groups and keys and keys[0] != "use":
            name, *keys = keys
        elif section in COMPONENTS:
            name = config.component(section).use
        else:
            return leaf
        kinds = list(_settings_of(section, name, plugins))
        return replace(leaf, value=_resolved(leaf.value, tuple(keys), kinds, leaf.folder))

    return layered.changed(resolve)


def _resolved_entry(entry: Any, config: Config, plugins: Plugins, folder: Path | None) -> Any:
    """Resolve the paths in a model's own sections."""
    changed = dict(entry)
    for section in COMPONENTS:
        own = entry.get(section)
        if isinstance(own, Mapping):
            name = own.get("use", config.component(section).use)
            changed[section] = _resolved(own, (), _settings_of(section, name, plugins), folder)
    return changed


def _settings_of(section: str, name: Any, plugins: Plugins) -> Iterator[type[msgspec.Struct]]:
    """Yield the settings of the provider that a section names, or of each that may be taken."""
    registry = registry_of(plugins, section)
    meant: Iterable[Provider[Any]] = registry if name == "auto" else ()
    if isinstance(name, str) and name != "auto" and registry.offers(name):
        with suppress(ConfigError):  # several offer it, which is an error later on
            meant = [registry.get(name)]
    for provider in meant:
        if provider.settings is not None:
            yield provider.settings


def _resolved(
    value: Any, keys: Keys, kinds: Iterable[type[msgspec.Struct]], folder: Path | None
) -> Any:
    """Return a setting with its paths resolved as the first type says that has any there."""
    for kind in kinds:
        changed = anchored(nested({keys: value}) if keys else value, kind, folder)
        for key in keys:
            changed = changed[key]
        if changed != value:
            return changed
    return value


def check_components(config: Config, plugins: Plugins) -> None:
    """Check the provider and the settings of every component, as far as no model is needed.

    Raises:
        ConfigError: a setting is unknown or out of range.
        PluginError: a provider that is chosen by name does not exist or cannot run here.
    """
    for error in component_errors(config, plugins):
        raise error


def check_groups(config: Config, plugins: Plugins) -> None:
    """Check every provider of the kinds whose providers are all used; errors as above."""
    for _, _, error in _wrong_groups(config, plugins):
        raise error


def component_errors(
    config: Config, plugins: Plugins, *, is_complete: bool = True
) -> Iterator[VlmkitError]:
    """Yield what is wrong with providers and their settings, as far as no model is needed.

    Args:
        config: names them.
        plugins: offer them.
        is_complete: whether all plugins that are meant are there; if not, only providers that are
            named and there are checked.
    """
    for entry in (None, *config.entries()):
        for error in wrong_sections(config, plugins, entry, is_complete=is_complete).values():
            yield error
    for section, name, error in _wrong_groups(config, plugins):
        if is_complete or registry_of(plugins, section).offers(name):
            yield error


def setting_errors(layered: LayeredConfig, plugins: Plugins) -> list[VlmkitError]:
    """Return what is wrong with settings, those of providers too, and with plugin files."""
    return [
        *layered.errors,
        *plugins.errors,
        *broken_files(layered.config.plugins, plugins),
        *component_errors(layered.config, plugins, is_complete=has_all_plugins(layered, plugins)),
    ]


def has_all_plugins(layered: LayeredConfig, plugins: Plugins) -> bool:
    """Tell whether each plugin that may be loaded is known."""
    tables = {setting.partition(".")[0] for setting in layered.unsound}
    return not plugins.errors and "plugins" not in tables


def wrong_sections(
    config: Config, plugins: Plugins, entry: ModelEntry | None, *, is_complete: bool = True
) -> dict[str, VlmkitError]:
    """Return what is wrong with components by their sections; as for :func:`component_errors`."""
    found: dict[str, VlmkitError] = {}
    for section in COMPONENTS:
        try:
            component = config.component(section, entry)
            if is_complete or registry_of(plugins, section).offers(component.use):
                _check_component(section, component, plugins)
        except VlmkitError as error:
            found[section] = error
    return found


def _wrong_groups(config: Config, plugins: Plugins) -> Iterator[tuple[str, str, VlmkitError]]:
    """Yield the section, the name and the error of each provider of a group that is wrong."""
    for section in groups_of(plugins):
        group = config.group(section)
        for name in dict.fromkeys((*group.use, *group.settings)):
            settings = group.settings.get(name, {})
            try:
                if name != "auto":
                    _check_named(registry_of(plugins, section), name, settings, plugins)
            except VlmkitError as error:
                yield section, name, error


def _check_component(section: str, component: Component, plugins: Plugins) -> None:
    registry = registry_of(plugins, section)
    if is_left_out(section, component):
        return
    if component.use == "auto":
        _check_for_any(registry, component)
    else:
        _check_named(registry, component.use, component.settings, plugins)


def paths_of(config: Config, plugins: Plugins) -> list[NamedPath]:
    """Return every path in tables of plugins, and of the providers that the config chooses."""
    found = []
    for name, table in plugins.tables.items():
        if not isinstance(table, Kind):
            found += named_paths(config.table(name, table), table, name)
    for entry in (None, *config.entries()):
        for section in COMPONENTS:
            with suppress(ConfigError):  # its use is no text, which is an error elsewhere
                component = config.component(section, entry)
                for kind in _settings_of(section, component.use, plugins):
                    found += named_paths(component.settings, kind, section)
    for section in groups_of(plugins):
        group = config.group(section)
        for name in group.use:
            own = group.settings.get(name, {})
            for kind in _settings_of(section, name, plugins) if name != "auto" else ():
                found += named_paths(own, kind, f"{section}.{name}")
    return found


def names_of(group: Group, registry: Registry[Any], subject: object) -> list[str]:
    """Return the providers that a section of several uses for a model, each once."""
    able = [registry.key(p) for p in registry.able(subject)] if "auto" in group.use else []
    names = (own for name in group.use for own in (able if name == "auto" else [name]))
    return list(dict.fromkeys(names))


def members(
    registry: Registry[Any], group: Group, context: BuildContext, built: ExitStack
) -> dict[str, Any]:
    """Build all of a group, each by its name; those that can be are closed with the stack."""
    found = {}
    for name in names_of(group, registry, context.checkpoint):
        found[name] = registry.build(name, group.settings.get(name, {}), context)
        if close := getattr(found[name], "close", None):
            built.callback(close)
    return found


def media_loaders(config: Config, plugins: Plugins) -> "dict[str, MediaLoader]":
    """Build what opens files, by name, for a command that has no model yet.

    Raises:
        ConfigError: a setting is wrong.
        PluginError: one that was asked for is not here.
    """
    section = MEDIA_LOADER.section
    registry, context = registry_of(plugins, section), BuildContext(registries=plugins.by_kind)
    with ExitStack() as built:
        return members(registry, config.group(section), context, built)


def component_names_of(
    plugins: Plugins, choice: Mapping[str, tuple[str, Any]], parts: Mapping[str, Any]
) -> ComponentNames:
    """Return how messages call the providers of a pipeline's parts.

    Args:
        plugins: offer them.
        choice: who makes the part of each section that chooses one, and with which settings.
        parts: has those of each section of several by the names of their providers.
    """
    kinds = plugins.sections
    named = {kinds[each].name: _who(plugins, each, name) for each, (name, _) in choice.items()}
    for section in (section for section in groups_of(plugins) if section in parts):
        kind = kinds[section].name
        named |= {f"{kind}.{name}": _who(plugins, section, name) for name in parts[section]}
    return ComponentNames(named)


def _who(plugins: Plugins, section: str, name: str) -> str:
    registry = registry_of(plugins, section)
    return registry.who(registry.get(name))


def refuse_broken_files(settings: PluginSettings, plugins: Plugins) -> None:
    """Raise if a plugin file that the config names was not loaded.

    Raises:
        PluginError: one was not; says why.
    """
    for error in broken_files(settings, plugins):
        raise error


def broken_files(settings: PluginSettings, plugins: Plugins) -> Iterator[PluginError]:
    """Yield why each plugin file was not loaded that the config names and that was not."""
    for file in (str(expanded(file)) for file in settings.files):
        if error := plugins.broken.get(file):
            hint = error.hint if isinstance(error, VlmkitError) else ""
            problem = PluginError(
                f"plugin file {file!r} could not be loaded: {described(error)}",
                hint=hint or "mend it, or take it out of plugins",
            )
            problem.__cause__ = error
            yield problem


def with_broken_plugins(error: PluginError, plugins: Plugins) -> PluginError:
    """Return an error about a missing provider that also says which plugins are not loaded."""
    broken = "; ".join(f"{name}: {described(e)}" for name, e in plugins.broken.items())
    unlisted = ", ".join(sorted({each.source for each in plugins.found if each.unlisted}))
    if not broken and not unlisted:
        return error
    text = f"{error}; could not be loaded: {broken}" if broken else str(error)
    hint = f"plugins.only excludes {unlisted}: add the one that is needed" if unlisted else ""
    return type(error)(text, hint=hint or error.hint)


def described(error: BaseException) -> str:
    """Return an error's kind and text in one line, for the owner of this machine."""
    return text_of(error) if isinstance(error, PluginError) else named(error)


def _check_named(
    registry: Registry[Any], name: str, settings: Mapping[str, Any], plugins: Plugins
) -> None:
    """Check a provider that is chosen by name, and its settings."""
    try:
        provider = registry.get(name)
    except PluginError as error:
        raise with_broken_plugins(error, plugins) from error
    registry.check_settings(provider, settings)
    if reason := provider.objection():
        raise PluginUnavailable(f"{registry.kind} {name!r} cannot be used: {reason}")


def _check_for_any(registry: Registry[Any], component: Component) -> None:
    """Check that settings suit at least one provider: which one it will be is not known yet."""
    errors: list[ConfigError] = []
    known: list[str] = []
    for provider in registry:
        try:
            registry.check_settings(provider, component.settings)
        except ConfigError as error:
            errors.append(error)
        else:
            return
        if provider.settings is not None:
            known += [field.encode_name for field in msgspec.structs.fields(provider.settings)]
    if len(errors) == 1:
        raise errors[0]
    for key in component.settings if errors else ():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "say which provider by use = ..."
            raise ConfigError(f"no installed {registry.kind} has a setting {key!r}", hint=hint)
    if errors:
        raise ConfigError(
            f"no installed {registry.kind} takes these settings together: "
            f"{', '.join(component.settings)}",
            hint='say which provider by use = "name"',
        )
