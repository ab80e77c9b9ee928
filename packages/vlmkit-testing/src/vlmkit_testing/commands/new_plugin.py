"""``vlmkit plugins new``: writes the project of a plugin, with tests that pass."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.plugins.kinds import Kind
    from vlmkit.settings.plugins import PluginSettings


def _kind(_: click.Context, parameter: click.Parameter, value: str) -> "Kind[Any]":
    """Return the kind of a name, whose words may be separated by spaces or hyphens."""
    from vlmkit.settings.plugins import PluginSettings

    name = value.lower().replace(" ", "_").replace("-", "_")
    for settings in (PluginSettings(only=()), PluginSettings()):  # other plugins only if need be
        kinds = _with_template(settings)
        if name in kinds:
            return kinds[name]
    _refuse_absent(name)
    known = ", ".join(kind.replace("_", "-") for kind in kinds)
    raise click.BadParameter(
        f"{value!r} is no kind of plugin. There are: {known}.", param=parameter
    )


def _with_template(settings: "PluginSettings") -> "dict[str, Kind[Any]]":
    """Return the kinds that have a template, by name, of the plugins that settings allow."""
    from vlmkit.cli.streams import reserved_stdout
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit_testing.project import EXAMPLES

    with reserved_stdout():
        kinds = load_plugins(settings).kinds
    return {kind.name: kind for kind in kinds if kind.name in EXAMPLES or kind.template}


def _refuse_absent(name: str) -> None:
    """Refuse a kind of the server that is not installed.

    Raises:
        PluginUnavailable: the server owns it.
    """
    from vlmkit.errors import PluginUnavailable
    from vlmkit.kit.install_command import install_command
    from vlmkit.plugins.names import SERVER
    from vlmkit_testing.project import EXAMPLES

    if name in EXAMPLES:
        raise PluginUnavailable(
            f"the kind {name!r} belongs to {SERVER}, which is not installed",
            hint=install_command(SERVER),
        )


@click.command()
@click.argument("kind", callback=_kind)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="What the plugin is called; the folder's name by default.")
@options.as_json
def new(*, kind: "Kind[Any]", folder: Path, name: str | None, as_json: bool) -> None:
    """Write the project of a plugin of kind KIND into FOLDER.

    It is a working example with tests, to be changed into your own.
    """
    from vlmkit_testing import project

    written = project.write(kind, folder, name or project.name_of(folder))
    check = " ".join(("vlmkit plugins check", *written.check))
    if as_json:
        files = [path.as_posix() for path in written.files]
        output.json(
            {
                "distribution": written.distribution,
                "kind": kind.name,
                "folder": str(folder),
                "files": files,
                "check": list(written.check),
            }
        )
        return
    summary = f"{written.distribution}, a plugin of the kind {kind.words}"
    click.echo(f"{summary}: {len(written.files)} files in {folder}")
    for command in (f"cd {folder}", 'pip install -e ".[test]"', "pytest", "mypy", check):
        click.echo(f"  {command}")
