"""Checks the sections of the config against the providers of plugins, and builds groups of them."""

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
    """Return whether a section disables its component.

    Raises:
        ConfigError: the component is required, or it is disabled and has settings.
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
    """Return a config with the paths in settings of providers resolved, too.

    Plugins must be loaded, because only they know which of these settings are paths.
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
        keys = entry.get(section)
        if isinstance(keys, Mapping):
            name = keys.get("use", config.component(section).use)
            changed[section] = _resolved(keys, (), _settings_of(section, name, plugins), folder)
    return changed


def _settings_of(section: str, name: Any, plugins: Plugins) -> Iterator[type[msgspec.Struct]]:
    """Yield the settings type of the provider that a section names, or of each candidate."""
    registry = registry_of(plugins, section)
    candidates: Iterable[Provider[Any]] = registry if name == "auto" else ()
    if isinstance(name, str) and name != "auto" and registry.offers(name):
        with suppress(ConfigError):  # several plugins have it, which is an error later
            candidates = [registry.get(name)]
    for provider in candidates:
        if provider.settings is not None:
            yield provider.settings


def _resolved(
    value: Any, keys: Keys, kinds: Iterable[type[msgspec.Struct]], folder: Path | None
) -> Any:
    """Return a setting with its paths resolved, by the first type that has a path there."""
    for kind in kinds:
        changed = anchored(nested({keys: value}) if keys else value, kind, folder)
        for key in keys:
            changed = changed[key]
        if changed != value:
            return changed
    return value


def check_components(config: Config, plugins: Plugins) -> None:
    """Check the provider and settings of every component, as far as possible without a model.

    Raises:
        ConfigError: a setting is unknown or out of range.
        PluginError: a provider that the config names does not exist or cannot run here.
    """
    for error in component_errors(config, plugins):
        raise error


def check_groups(config: Config, plugins: Plugins) -> None:
    """Check every configured provider of groups; errors as for :func:`check_components`."""
    for _, _, error in _wrong_groups(config, plugins):
        raise error


def component_errors(
    config: Config, plugins: Plugins, *, is_complete: bool = True
) -> Iterator[VlmkitError]:
    """Yield the errors of providers and their settings, as far as possible without a model.

    Args:
        config: the config that names the providers.
        plugins: the loaded plugins.
        is_complete: whether all configured plugins are loaded; if not, only known providers are
            checked.
    """
    for entry in (None, *config.entries()):
        for error in wrong_sections(config, plugins, entry, is_complete=is_complete).values():
            yield error
    for section, name, error in _wrong_groups(config, plugins):
        if is_complete or registry_of(plugins, section).offers(name):
            yield error


def setting_errors(layered: LayeredConfig, plugins: Plugins) -> list[VlmkitError]:
    """Return the errors of all settings, including those of providers, and of plugin files."""
    return [
        *layered.errors,
        *plugins.errors,
        *broken_files(layered.config.plugins, plugins),
        *component_errors(layered.config, plugins, is_complete=has_all_plugins(layered, plugins)),
    ]


def has_all_plugins(layered: LayeredConfig, plugins: Plugins) -> bool:
    """Return whether all configured plugins are known."""
    tables = {setting.partition(".")[0] for setting in layered.unsound}
    return not plugins.errors and "plugins" not in tables


def wrong_sections(
    config: Config, plugins: Plugins, entry: ModelEntry | None, *, is_complete: bool = True
) -> dict[str, VlmkitError]:
    """Return the errors of components by section; arguments as for :func:`component_errors`."""
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
    """Yield section, name and error of each group's provider that has an error."""
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
    """Return every path in tables of plugins, and in settings of the configured providers."""
    found = []
    for name, table in plugins.tables.items():
        if not isinstance(table, Kind):
            found += named_paths(config.table(name, table), table, name)
    for entry in (None, *config.entries()):
        for section in COMPONENTS:
            with suppress(ConfigError):  # an invalid `use` is reported elsewhere
                component = config.component(section, entry)
                for kind in _settings_of(section, component.use, plugins):
                    found += named_paths(component.settings, kind, section)
    for section in groups_of(plugins):
        group = config.group(section)
        for name in group.use:
            settings = group.settings.get(name, {})
            for kind in _settings_of(section, name, plugins) if name != "auto" else ():
                found += named_paths(settings, kind, f"{section}.{name}")
    return found


def names_of(group: Group, registry: Registry[Any], subject: object) -> list[str]:
    """Return the names of the providers that a group uses for a model, without duplicates."""
    able = [registry.key(p) for p in registry.able(subject)] if "auto" in group.use else []
    names = (each for name in group.use for each in (able if name == "auto" else [name]))
    return list(dict.fromkeys(names))


def build_group(
    registry: Registry[Any], group: Group, context: BuildContext, built: ExitStack
) -> dict[str, Any]:
    """Build all providers of a group, by name, and register their ``close`` with the stack."""
    found = {}
    for name in names_of(group, registry, context.checkpoint):
        found[name] = registry.build(name, group.settings.get(name, {}), context)
        if close := getattr(found[name], "close", None):
            built.callback(close)
    return found


def media_loaders(config: Config, plugins: Plugins) -> "dict[str, MediaLoader]":
    """Build the media loaders, by name, for a command without a model.

    Raises:
        ConfigError: a setting is invalid.
        PluginError: a configured media loader is missing.
    """
    section = MEDIA_LOADER.section
    registry, context = registry_of(plugins, section), BuildContext(registries=plugins.by_kind)
    with ExitStack() as built:
        return build_group(registry, config.group(section), context, built)


def component_names_of(
    plugins: Plugins, choice: Mapping[str, tuple[str, Any]], parts: Mapping[str, Any]
) -> ComponentNames:
    """Return the names of a pipeline's components for messages.

    Args:
        plugins: the loaded plugins.
        choice: name and settings of the chosen provider of each section.
        parts: the built components; those of groups by the names of their providers.
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


def broken_files(settings: PluginSettings, plugins: Plugins) -> Iterator[PluginError]:
    """Yield an error for each plugin file in the config that was not loaded."""
    for file in (str(expanded(file)) for file in settings.files):
        if error := plugins.broken.get(file):
            hint = error.hint if isinstance(error, VlmkitError) else ""
            problem = PluginError(
                f"plugin file {file!r} could not be loaded: {described(error)}",
                hint=hint or "fix it, or remove it from plugins",
            )
            problem.__cause__ = error
            yield problem


def with_broken_plugins(error: PluginError, plugins: Plugins) -> PluginError:
    """Return an error about a missing provider that also lists the plugins that are not loaded."""
    broken = "; ".join(f"{name}: {described(e)}" for name, e in plugins.broken.items())
    unlisted = ", ".join(sorted({each.source for each in plugins.found if each.unlisted}))
    if not broken and not unlisted:
        return error
    text = f"{error}; could not be loaded: {broken}" if broken else str(error)
    hint = f"plugins.only excludes {unlisted}: add the one that is needed" if unlisted else ""
    return type(error)(text, hint=hint or error.hint)


def described(error: BaseException) -> str:
    """Return an error's type and text in one line, for the owner of this machine."""
    return text_of(error) if isinstance(error, PluginError) else named(error)


def _check_named(
    registry: Registry[Any], name: str, settings: Mapping[str, Any], plugins: Plugins
) -> None:
    """Check a provider that the config names, and its settings."""
    try:
        provider = registry.get(name)
    except PluginError as error:
        raise with_broken_plugins(error, plugins) from error
    registry.check_settings(provider, settings)
    if reason := provider.objection():
        raise PluginUnavailable(f"{registry.kind} {name!r} cannot be used: {reason}")


def _check_for_any(registry: Registry[Any], component: Component) -> None:
    """Check that settings suit at least one provider; which one is used is not known yet."""
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
