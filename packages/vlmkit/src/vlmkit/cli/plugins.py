"""``vlmkit plugins``: what is installed, and what of it can be used here."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.plugins import Plugins


@click.command()
@options.as_json
@options.configured
def plugins(*, as_json: bool, config_file: Path | None, assignments: Sequence[str]) -> None:
    """List what plugins provide, and why some of it cannot be used."""
    from vlmkit.cli.loading import read_with_plugins

    _, found = read_with_plugins(config_file, assignments)
    if as_json:
        output.json({"plugins": list(_plugins(found)), "providers": list(providers(found))})
        return
    rows = [
        (p["kind"], p["name"], p["plugin"], p["version"], p["reason"] or "usable")
        for p in providers(found)
    ]
    output.columns(("KIND", "PROVIDER", "PLUGIN", "VERSION", "STATUS"), rows)
    for plugin in _plugins(found):
        if plugin["error"]:
            click.echo(f"could not be loaded: {plugin['source']}: {plugin['error']}")
        if plugin["hint"]:
            click.echo(f"  hint: {plugin['hint']}")
        if plugin["blocked"]:
            click.echo(f"left out by VLMKIT_BLOCK: {plugin['source']}")


def providers(found: "Plugins") -> Iterator[dict[str, Any]]:
    """Yield what is known of each provider; ``reason`` says why it cannot run here."""
    from vlmkit import __version__
    from vlmkit.plugins import KINDS

    versions = {plugin.source: plugin.version for plugin in found.found}
    versions["vlmkit"] = __version__
    for kind in KINDS:
        for provider in getattr(found, kind):
            yield {
                "kind": kind.removesuffix("s"),
                "name": provider.name,
                "plugin": provider.plugin,
                "version": versions[provider.plugin],
                "reason": provider.objection(),
                "priority": "by model" if callable(provider.priority) else provider.priority,
                "description": provider.description,
            }


def _plugins(found: "Plugins") -> Iterator[dict[str, Any]]:
    from vlmkit.config.providers import described

    for plugin in found.found:
        yield {
            "name": plugin.name,
            "source": plugin.source,
            "version": plugin.version,
            "error": described(plugin.error) if plugin.error else None,
            "hint": getattr(plugin.error, "hint", None) or None,
            "blocked": plugin.blocked,
        }
