"""``vlmkit serve --check``: reports everything that prevents a server from starting.

It reads small files of models, and downloads those of a hub's model that are not on this disk. It
neither downloads nor loads weights, and starts no server.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import output
from vlmkit.errors import ConfigError, VlmkitError
from vlmkit_server.settings.server import ServerSettings

if TYPE_CHECKING:
    from vlmkit.config import Config, LayeredConfig, ModelEntry
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins


def check(layered: "LayeredConfig", plugins: "Plugins", models: Sequence[str]) -> bool:
    """Write every problem and warning to standard error; return whether there is no problem."""
    from vlmkit.config.providers import has_all_plugins, paths_of, setting_errors
    from vlmkit_server.commands.preflight import problems, warnings

    settings = layered.config.table("server", ServerSettings)
    found = setting_errors(layered, plugins)
    if not found:  # otherwise, building the APIs would report the same again
        found += _api_errors(layered.config, plugins)
    if has_all_plugins(layered, plugins):
        found += _model_errors(layered, plugins, models)
    else:
        click.echo("note: models are not checked before plugins.only is right", err=True)
    found += problems(settings, paths_of(layered.config, plugins), layered.unsound)
    output.errors(found)
    for warning in () if found else warnings(settings):
        click.echo(f"warning: {warning}", err=True)
    return not found


def _sections(settings: Iterable[str]) -> set[str]:
    return {setting.partition(".")[0] for setting in settings}


def _api_errors(config: "Config", plugins: "Plugins") -> Iterator[VlmkitError]:
    """Yield why the APIs of a config cannot be built, or not be served together."""
    from vlmkit.config.providers import component_names_of
    from vlmkit_server.app import check_apis
    from vlmkit_server.commands.components import apis

    try:
        served = apis(config, plugins)
        check_apis(served, component_names_of(plugins, {}, {"apis": served}))
    except VlmkitError as error:
        yield error


def _model_errors(
    layered: "LayeredConfig", plugins: "Plugins", models: Sequence[str]
) -> Iterator[VlmkitError]:
    """Yield why models cannot be served, as far as their small files show.

    Providers are checked only if every plugin that the config needs is installed.
    """
    from vlmkit.assembly.runners import examine_remote
    from vlmkit.assembly.sources import find, name_of, runner_of_scheme
    from vlmkit.cli.loading import wanted_entries
    from vlmkit.config.providers import broken_files

    config = layered.config
    checks_providers = not [*broken_files(config.plugins, plugins)]
    if not models and not config.entries() and _sections(layered.unsound) & {"model", "models"}:
        return  # the configured model is invalid, which is reported already
    try:
        entries = wanted_entries(models, config, plugins)
    except (VlmkitError, click.UsageError) as error:
        yield error if isinstance(error, VlmkitError) else ConfigError(error.message)
        return
    names = [name_of(entry) for entry in entries]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield ConfigError(f"two models are called {name!r}", hint="give each its own name")
    for entry in entries:
        try:
            if (owner := runner_of_scheme(entry.model, plugins)) is not None:
                examine_remote(owner, entry, config, plugins)
                continue
            find(entry.model, plugins)
            if checks_providers:
                yield from _flaws(entry, config, plugins)
        except VlmkitError as error:
            yield error


def _flaws(entry: "ModelEntry", config: "Config", plugins: "Plugins") -> "list[VlmkitError]":
    """Return the objections of providers to one model.

    A model on this disk causes no request. For another one, the hub is asked for its small files,
    as at startup, and for no weights.
    """
    from vlmkit.assembly.sources import fetched, find, inspected, name_of
    from vlmkit.plugins.provider import Provider

    found = find(entry.model, plugins)
    source = found if isinstance(found, Provider) and not found.is_packaged else None
    is_here = source is None or any(entry.model in fetched(each) for each in plugins.models)
    flaws: list[VlmkitError] = []
    if is_here or (source is not None and source.previews is not None):
        flaws = inspected(
            entry.model,
            plugins,
            entry.revision,
            projector=entry.projector,
            inspect=partial(_refusals, entry, config, plugins),
            is_final=bool,
        )
    if not is_here and not flaws:
        click.echo(f"note: the weights of {name_of(entry)!r} are fetched when it starts", err=True)
    return flaws


def _refusals(
    entry: "ModelEntry", config: "Config", plugins: "Plugins", checkpoint: "Checkpoint"
) -> "list[VlmkitError]":
    """Return why the selected providers cannot serve a model.

    A component whose own settings are invalid is left out: that is reported already.
    """
    from vlmkit.assembly.load import choose, examination_errors
    from vlmkit.config.providers import wrong_sections
    from vlmkit.config.structs import COMPONENTS

    wrong = wrong_sections(config, plugins, entry)
    choice: dict[str, tuple[str, dict[str, Any]]] = {}
    refusals: list[VlmkitError] = []
    for section in COMPONENTS:
        try:
            if section not in wrong:
                choice |= choose(entry, config, plugins, checkpoint, [section])
        except ConfigError as error:
            refusals.append(error)
        except VlmkitError as error:  # without one component, others rarely work
            return [*refusals, error]
    return [*refusals, *examination_errors(entry, choice, plugins, checkpoint)]
