"""Where sections meet plugins: whether what is set for a provider is what that provider takes."""

import difflib
from typing import Any

import msgspec

from vlmkit.config.structs import COMPONENTS, Component, Config
from vlmkit.errors import ConfigError, PluginError, PluginUnavailable
from vlmkit.plugins import Plugins
from vlmkit.registry import Registry


def registry_of(plugins: Plugins, section: str) -> Registry[Any]:
    """Return the registry that a section of the config selects from."""
    registry: Registry[Any] = getattr(plugins, f"{section}s")
    return registry


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
            if component.use == "auto":
                _check_for_any(registry, component)
                continue
            try:
                provider = registry.get(component.use)
            except PluginError as error:
                raise with_broken_plugins(error, plugins) from error
            registry.check_settings(provider, component.settings)
            if reason := provider.objection():
                raise PluginUnavailable(f"{section} {component.use!r} cannot be used: {reason}")


def with_broken_plugins(error: PluginError, plugins: Plugins) -> PluginError:
    """Return an error about a missing provider that also says which plugins are broken."""
    if not plugins.broken:
        return error
    broken = "; ".join(f"{name}: {described(e)}" for name, e in plugins.broken.items())
    return type(error)(f"{error}; could not be loaded: {broken}", hint=error.hint)


def described(error: BaseException) -> str:
    """Return an error's kind and text in one line, for the owner of this machine."""
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"


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
