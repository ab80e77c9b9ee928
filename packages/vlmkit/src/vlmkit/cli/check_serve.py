"""``vlmkit serve --check``: everything that would keep a server from starting, and no server.

Reads small files of models, and fetches those of a hub's model that is not on this disk. Neither
fetches nor loads weights.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from vlmkit.cli import output
from vlmkit.errors import ConfigError, VlmkitError

if TYPE_CHECKING:
    from vlmkit.config import Config, ModelEntry
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins


def check(config: "Config", plugins: "Plugins", models: Sequence[str]) -> bool:
    """Write every problem and warning to standard error; return whether there is no problem."""
    from vlmkit.config.providers import broken_files, component_errors, paths_of
    from vlmkit.server.preflight import problems, warnings

    found: list[VlmkitError] = [
        *broken_files(config, plugins),
        *component_errors(config, plugins),
    ]
    found += [
        *_model_errors(config, plugins, models, is_sound=not found),
        *problems(config.server, paths_of(config, plugins)),
    ]
    for problem in {(str(each), each.hint): each for each in found}.values():
        output.error(problem)
    for warning in () if found else warnings(config.server):
        click.echo(f"warning: {warning}", err=True)
    return not found


def _model_errors(
    config: "Config", plugins: "Plugins", models: Sequence[str], *, is_sound: bool
) -> Iterator[VlmkitError]:
    """Yield why models cannot be served, as far as their small files tell.

    Providers are asked only if their plugins and settings are sound.
    """
    from vlmkit.cli.loading import wanted_entries
    from vlmkit.sources import find, name_of

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
            find(entry.model, plugins)
            if is_sound:
                yield from _flaws(entry, config, plugins)
        except VlmkitError as error:
            yield error


def _flaws(entry: "ModelEntry", config: "Config", plugins: "Plugins") -> "list[VlmkitError]":
    """Return what providers say against one model.

    A model on this disk causes no request. Of another one the hub is asked for its small files,
    as at the start, and for no weights.
    """
    from vlmkit.plugins.provider import Provider
    from vlmkit.sources import fetched, find, inspected, name_of

    found = find(entry.model, plugins)
    source = found if isinstance(found, Provider) and not found.is_packaged else None
    is_here = source is None or any(entry.model in fetched(each) for each in plugins.models)
    flaws: list[VlmkitError] = []
    if is_here or (source is not None and source.previews is not None):
        flaws = inspected(
            entry.model,
            plugins,
            entry.revision,
            inspect=partial(_refusals, entry, config, plugins),
            is_final=bool,
        )
    if not is_here and not flaws:
        click.echo(f"note: the weights of {name_of(entry)!r} are fetched when it starts", err=True)
    return flaws


def _refusals(
    entry: "ModelEntry", config: "Config", plugins: "Plugins", checkpoint: "Checkpoint"
) -> "list[VlmkitError]":
    """Return why the providers that would be chosen cannot serve a model."""
    from vlmkit.assembly import choose
    from vlmkit.config.providers import registry_of
    from vlmkit.plugins.registry import BuildContext

    try:
        choice = choose(entry, config, plugins, checkpoint)
    except VlmkitError as error:
        return [error]
    context = BuildContext(
        entry.model,
        checkpoint,
        revision=entry.revision,
        registries=plugins.by_kind,
        components=choice,
    )
    refusals = []
    for section, (name, settings) in choice.items():
        try:
            registry_of(plugins, section).examine(name, settings, context)
        except VlmkitError as error:
            refusals.append(error)
    return refusals
