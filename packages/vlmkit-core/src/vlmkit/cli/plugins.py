"""``vlmkit plugins``: lists plugins and their providers, with reasons why some cannot be used."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.cli.group import CommandGroup

if TYPE_CHECKING:
    from vlmkit.plugins.loader import Plugins


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--times", is_flag=True, help="Show the import time of each plugin.")
@click.option("--check", "checks", is_flag=True, help="Exit with 1 if any plugin has a problem.")
@options.as_json
@options.configured
@click.pass_context
def plugins(
    context: click.Context,
    *,
    times: bool,
    checks: bool,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """List the providers of plugins, and why some cannot be used."""
    from vlmkit.cli.loading import read_with_plugins

    if context.invoked_subcommand is not None:
        if as_json or config_file or assignments or times or checks:
            raise click.UsageError(f"options must follow {context.invoked_subcommand!r}")
        return
    _, found = read_with_plugins(config_file, assignments, diagnoses=True)
    if as_json:
        output.json({"plugins": list(_plugins(found)), "providers": list(providers(found))})
    else:
        _write(found, times=times)
    if checks and any(plugin.error or plugin.remarks for plugin in found.found):
        context.exit(1)


def _write(found: "Plugins", *, times: bool) -> None:
    """Write a table, and a line for each problem of a plugin."""
    if times:
        by_time = sorted(found.found, key=lambda plugin: -plugin.import_s)
        columns = ("PLUGIN", "DISTRIBUTION", "SECONDS", "MODULES", "HEAVY LIBRARIES")
        output.columns(
            columns,
            [
                (p.name, p.source, f"{p.import_s:.3f}", str(p.num_modules), ", ".join(p.heavy))
                for p in by_time
            ],
        )
    else:
        rows = [
            (p["kind"], p["use"], p["plugin"], p["version"], p["reason"] or "usable")
            for p in providers(found)
        ]
        output.columns(("KIND", "PROVIDER", "PLUGIN", "VERSION", "STATUS"), rows)
    for plugin, row in zip(found.found, _plugins(found), strict=True):
        if row["error"]:
            click.echo(f"{plugin.who} could not be loaded: {row['error']}")
        if row["hint"]:
            click.echo(f"  hint: {row['hint']}")
        for remark in plugin.remarks:
            click.echo(f"{plugin.who} {remark}")
        if plugin.blocked:
            click.echo(f"excluded by VLMKIT_BLOCK: {plugin.source}")
        if plugin.unlisted:
            click.echo(f"excluded by plugins.only: {plugin.source}")


def providers(found: "Plugins") -> Iterator[dict[str, Any]]:
    """Yield the facts about each provider; ``reason`` is why it cannot run here."""
    from vlmkit import __version__
    from vlmkit.kit.objection import with_hint

    versions = {plugin.source: plugin.version for plugin in found.found}
    versions["vlmkit"] = __version__
    for kind in found.kinds:
        registry = found.of(kind)
        for provider in registry:
            yield {
                "kind": kind.name,
                "name": provider.name,
                "use": registry.key(provider),
                "plugin": provider.plugin,
                "version": versions[provider.plugin],
                "reason": with_hint(provider.objection()),
                "priority": "by model" if callable(provider.priority) else provider.priority,
                "description": provider.description,
            }


def _plugins(found: "Plugins") -> Iterator[dict[str, Any]]:
    from vlmkit.config.providers import described
    from vlmkit.errors import VlmkitError
    from vlmkit.kit.one_line import one_line

    for plugin in found.found:
        hint = plugin.error.hint if isinstance(plugin.error, VlmkitError) else ""
        yield {
            "name": plugin.name,
            "source": plugin.source,
            "version": plugin.version,
            "error": described(plugin.error) if plugin.error else None,
            "hint": one_line(hint) or None,
            "remarks": plugin.remarks,
            "blocked": plugin.blocked,
            "unlisted": plugin.unlisted,
            "sha256": plugin.digest(),
            "import_s": round(plugin.import_s, 4),
            "num_modules": plugin.num_modules,
            "heavy": plugin.heavy,
        }
