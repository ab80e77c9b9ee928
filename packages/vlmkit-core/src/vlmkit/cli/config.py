"""``vlmkit config``: shows, checks and describes settings."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from vlmkit.cli import options, output
from vlmkit.cli.group import CommandGroup

if TYPE_CHECKING:
    from vlmkit.config import LayeredConfig, Setting
    from vlmkit.plugins.loader import Plugins


@click.group(cls=CommandGroup)
def config() -> None:
    """Show, check and describe settings.

    The first of these sources that has a setting applies: --set section.key=value,
    VLMKIT_SECTION__KEY in the environment, the TOML file of --config or VLMKIT_CONFIG, the default.
    """


@config.command()
@options.as_json
@options.configured
def show(*, as_json: bool, config_file: Path | None, assignments: Sequence[str]) -> None:
    """Print every setting with its value and origin."""
    from vlmkit.cli.loading import read_with_plugins

    layered, plugins = read_with_plugins(config_file, assignments, diagnoses=True)
    settings = sorted(_all_settings(layered, plugins), key=lambda s: ("." in s.path, s.path))
    if as_json:
        fields = ("path", "shown", "origin", "description")
        names = ("setting", "value", "origin", "description")
        output.json(
            [dict(zip(names, (getattr(s, f) for f in fields), strict=True)) for s in settings]
        )
        return
    rows = [(s.path, msgspec.json.encode(s.shown).decode(), s.origin) for s in settings]
    output.columns(("SETTING", "VALUE", "ORIGIN"), rows)


@config.command()
@options.configured
def check(*, config_file: Path | None, assignments: Sequence[str]) -> None:
    """Check every setting and report all errors; build nothing.

    Also checks the settings of providers that the config names.
    """
    from vlmkit.cli import EXIT_FAILED, EXIT_USAGE
    from vlmkit.cli.loading import diagnosed
    from vlmkit.config.providers import described, setting_errors
    from vlmkit.errors import ConfigError, PluginError, UnknownPlugin
    from vlmkit.plugins.names import OWNERS_OF_TABLES

    layered, plugins = diagnosed(config_file, assignments, {})
    errors = setting_errors(layered, plugins)
    for table in sorted(layered.unread):
        owner = OWNERS_OF_TABLES[table]
        click.echo(f"note: [{table}] is not checked: {owner} is not loaded", err=True)
        if error := plugins.broken.get(owner):
            errors.append(PluginError(f"{owner} could not be loaded: {described(error)}"))
    if errors:
        output.errors(errors)
        is_usage = any(isinstance(error, ConfigError | UnknownPlugin) for error in errors)
        click.get_current_context().exit(EXIT_USAGE if is_usage else EXIT_FAILED)
    click.echo(f"valid: {len(layered.set_by)} settings, the rest by default")


@config.command()
@options.configured
def schema(*, config_file: Path | None, assignments: Sequence[str]) -> None:
    """Print the JSON schema of a config file.

    Includes the settings of all installed providers.
    """
    from vlmkit.cli.loading import read_with_plugins
    from vlmkit.config.schema import json_schema

    output.write_alone(click.get_current_context())
    _, plugins = read_with_plugins(config_file, assignments, diagnoses=True)
    output.json(json_schema(plugins))


def _all_settings(layered: "LayeredConfig", plugins: "Plugins") -> "Iterator[Setting]":
    """Yield the settings of the core, and those of providers that the config names."""
    from vlmkit.config import COMPONENTS, Setting
    from vlmkit.config.providers import groups_of, registry_of
    from vlmkit.config.structs import descriptions

    stated = {setting.path: setting for setting in layered.settings()}
    yield from stated.values()
    named = [(section, section, layered.config.component(section).use) for section in COMPONENTS]
    for section in groups_of(plugins):
        names = layered.config.group(section).use
        named += [(section, f"{section}.{name}", name) for name in names]
    for section, table, name in named:
        if name in ("auto", "none"):
            continue
        struct = registry_of(plugins, section).get(name).settings
        for field in msgspec.structs.fields(struct) if struct else ():
            path = f"{table}.{field.encode_name}"
            if struct and path not in stated and not field.required:
                origin = f"default of {name!r}"
                meaning = descriptions(struct).get(field.name, "")
                yield Setting(path, _default(field), origin, meaning)


def _default(field: "msgspec.structs.FieldInfo") -> object:
    factory = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()
    return msgspec.to_builtins(value)
