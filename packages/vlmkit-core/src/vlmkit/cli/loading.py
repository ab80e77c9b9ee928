"""Loads models for commands: reads the config, loads plugins, builds, and shows progress."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli.output import write_notes
from vlmkit.cli.streams import reserved_stdout
from vlmkit.config import Config, LayeredConfig, ModelEntry, read_layers
from vlmkit.errors import ConfigError
from vlmkit.plugins.loader import Plugins
from vlmkit.settings.plugins import PluginSettings

if TYPE_CHECKING:
    from vlmkit.model import Model

QUIET_STAGES = ("model files", "ready")  # sources show their own progress; the end needs none


class Stages:
    """Shows the stages of loading on standard error, and times them.

    Args:
        lists: whether to write a line for each stage; otherwise a terminal shows the present one.
    """

    def __init__(self, *, lists: bool = False) -> None:
        self._lists = lists
        self._name = ""
        self._since = time.perf_counter()
        self._status: Any = None

    def __call__(self, name: str) -> None:
        """Record that a stage begins, and that the one before is over."""
        now = time.perf_counter()
        if self._lists and self._name:
            click.echo(f"  {self._name:16} {now - self._since:7.2f} s", err=True)
        self._name, self._since = name, now
        if name in QUIET_STAGES or self._lists or not sys.stderr.isatty():
            self.close()
        elif self._status is None:
            self._status = _status(f"loading {name}")
        else:
            self._status.update(f"loading {name}")

    def close(self) -> None:
        """Clear the line of the terminal."""
        if self._status is not None:
            self._status.stop()
            self._status = None


@dataclass(frozen=True)
class Wanted:
    """A requested model, and what is needed to build it.

    Attributes:
        entry: the model.
        config: how it is built.
        plugins: what it is built of.
        name: the name by which it was requested; empty if it is the only one.
    """

    entry: ModelEntry
    config: Config
    plugins: Plugins
    name: str = ""


def wanted(model: str | None, config_file: Path | None, assignments: Sequence[str]) -> Wanted:
    """Return the one model of a command; builds nothing."""
    layered, plugins = read_with_plugins(config_file, assignments)
    return wanted_of(model, layered.config, plugins)


def wanted_of(model: str | None, config: Config, plugins: Plugins) -> Wanted:
    """Return the named model, or the only one of the config, or the only one installed.

    Raises:
        click.UsageError: there is no model, or there are several.
    """
    from vlmkit.assembly.sources import name_of, packaged_models

    packaged = packaged_models(plugins)
    if model is None and not config.entries() and len(packaged) == 1:
        model = packaged[0]
    entries = wanted_entries([model] if model else [], config, plugins)
    if len(entries) > 1:
        names = ", ".join(map(name_of, entries))
        raise click.UsageError(f"the config has several models: name one of {names}")
    return Wanted(entries[0], config, plugins, model or "")


@contextmanager
def opened(wanted: Wanted) -> "Iterator[Model]":
    """Load a model, and close it when the context closes."""
    from vlmkit.assembly.load import assemble
    from vlmkit.model import Model

    with closing(Stages()) as stages:
        runner = assemble(wanted.entry, wanted.config, wanted.plugins, stages)
    if fields := wanted.entry.alias_fields.get(wanted.name):
        from vlmkit.running.pipeline.alias_runner import AliasRunner

        runner = AliasRunner(runner, wanted.name, fields)
    with Model(runner) as model:
        yield model


def wanted_entries(
    models: Sequence[str], config: Config, plugins: Plugins
) -> tuple[ModelEntry, ...]:
    """Return the named models, or else those of the config.

    Raises:
        click.UsageError: there is no model; lists the available ones.
    """
    configured = config.entries()
    if not models:
        if not configured:
            raise click.UsageError(f"name a model. {_available_models(plugins)}")
        return configured
    by_name = {name: entry for entry in configured for name in entry.names}
    return tuple(
        by_name.get(model)
        or ModelEntry(model=model, revision=config.revision, projector=config.projector)
        for model in models
    )


def _available_models(plugins: Plugins) -> str:
    """Return a sentence about the models that can be named."""
    from vlmkit.assembly.sources import packaged_models, schemes
    from vlmkit.kit.install_command import install_command

    packaged = ", ".join(packaged_models(plugins))
    uris = "".join(f", a URI of {each}" for each in schemes(plugins))
    if not packaged:
        demo = install_command("vlmkit-demo")
        return f"None is installed{uris and ', but' + uris[1:]}: try {demo}."
    return f"Installed: {packaged}. A folder{uris} or a hub id also works."


def read_with_plugins(
    config_file: Path | None,
    assignments: Sequence[str],
    options: Mapping[str, str] | None = None,
    *,
    diagnoses: bool = False,
) -> tuple[LayeredConfig, Plugins]:
    """Return the config and the plugins; builds nothing.

    With ``diagnoses``, a plugin file that cannot be loaded is not an error. Prints of plugins go to
    standard error.
    """
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.config.providers import with_provider_paths

    layers = read_layers(config_file, assignments=assignments, options=options)
    with reserved_stdout():
        plugins = load_plugins(layers.plugins(), diagnoses=diagnoses)
    write_notes(plugins)
    return with_provider_paths(layers.read(plugins.tables), plugins), plugins


def diagnosed(
    config_file: Path | None, assignments: Sequence[str], options: Mapping[str, str]
) -> tuple[LayeredConfig, Plugins]:
    """Return the config and the plugins without invalid settings; both list their errors.

    If the settings that select plugins are invalid, only those of vlmkit are loaded.
    """
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.config.providers import with_provider_paths

    layers = read_layers(config_file, assignments=assignments, options=options)
    try:
        settings = layers.plugins()
    except ConfigError:
        settings = PluginSettings(only=())
    with reserved_stdout():
        plugins = load_plugins(settings, diagnoses=True, is_lenient=True)
    write_notes(plugins)
    layered = layers.read(plugins.tables, diagnoses=True)
    return with_provider_paths(layered, plugins), plugins


def _status(text: str) -> Any:
    from rich.console import Console

    status = Console(stderr=True).status(text)
    status.start()
    return status
