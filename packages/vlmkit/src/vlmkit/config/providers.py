"""Where sections meet plugins: whether what is set for a provider is what that provider takes."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from vlmkit.config.layers import expanded
from vlmkit.config.structs import COMPONENTS, GROUPS, SECTIONS, Component, Config, Group
from vlmkit.errors import ConfigError, PluginError, PluginUnavailable, VlmkitError
from vlmkit.kit.one_line import named, text_of
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import Registry
from vlmkit.running.blame import Makers


def registry_of(plugins: Plugins, section: str) -> Registry[Any]:
    """Return the registry that a section of the config selects from."""
    return plugins.of(SECTIONS[section])


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


def check_components(config: Config, plugins: Plugins) -> None:
    """Check the provider and the settings of every component, as far as no model is needed.

    Raises:
        ConfigError: a setting is unknown or out of range.
        PluginError: a provider that is chosen by name does not exist or cannot run here.
    """
    for entry in (None, *config.entries()):
        for section in COMPONENTS:
            component = config.component(section, entry)
            registry = registry_of(plugins, section)
            if is_left_out(section, component):
                continue
            if component.use == "auto":
                _check_for_any(registry, component)
                continue
            _check_named(registry, component.use, component.settings, plugins)
    check_groups(config, plugins)


def check_groups(config: Config, plugins: Plugins) -> None:
    """Check every provider of the kinds whose providers are all used; errors as above."""
    for section in GROUPS:
        group = config.group(section)
        for name in dict.fromkeys((*group.use, *group.settings)):
            if name == "auto":
                continue
            _check_named(registry_of(plugins, section), name, group.settings.get(name, {}), plugins)


def names_of(group: Group, registry: Registry[Any], subject: object) -> list[str]:
    """Return the providers that a section of several uses for a model, each once."""
    able = [registry.key(p) for p in registry.able(subject)] if "auto" in group.use else []
    names = (own for name in group.use for own in (able if name == "auto" else [name]))
    return list(dict.fromkeys(names))


def makers_of(
    plugins: Plugins, choice: Mapping[str, tuple[str, Any]], parts: Mapping[str, Any]
) -> Makers:
    """Return how messages call the providers of a pipeline's parts.

    Args:
        plugins: offer them.
        choice: who makes the part of each section that chooses one, and with which settings.
        parts: has those of each section of several by the names of their providers.
    """
    named = {SECTIONS[each].name: _who(plugins, each, name) for each, (name, _) in choice.items()}
    for section in (section for section in GROUPS if section in parts):
        kind = SECTIONS[section].name
        named |= {f"{kind}.{name}": _who(plugins, section, name) for name in parts[section]}
    return Makers(named)


def _who(plugins: Plugins, section: str, name: str) -> str:
    registry = registry_of(plugins, section)
    return registry.who(registry.get(name))


def refuse_broken_files(config: Config, plugins: Plugins) -> None:
    """Raise if a plugin file that the config names was not loaded.

    Raises:
        PluginError: one was not; says why.
    """
    for file in (str(expanded(file)) for file in config.plugins.files):
        if error := plugins.broken.get(file):
            hint = error.hint if isinstance(error, VlmkitError) else ""
            raise PluginError(
                f"plugin file {file!r} could not be loaded: {described(error)}",
                hint=hint or "mend it, or take it out of plugins",
            ) from error


def with_broken_plugins(error: PluginError, plugins: Plugins) -> PluginError:
    """Return an error about a missing provider that also says which plugins are broken."""
    if not plugins.broken:
        return error
    broken = "; ".join(f"{name}: {described(e)}" for name, e in plugins.broken.items())
    return type(error)(f"{error}; could not be loaded: {broken}", hint=error.hint)


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
