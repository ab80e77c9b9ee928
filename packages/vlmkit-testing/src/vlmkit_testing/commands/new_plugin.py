"""``vlmkit plugins new``: writes the project of a plugin, with tests that pass."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.plugins.kinds import Kind


def _kinds() -> list[str]:
    from vlmkit_testing.project import EXAMPLES

    return [name.replace("_", "-") for name in EXAMPLES]


def _kind(_: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the name of a kind as in code; its words may be separated by spaces or hyphens."""
    kind = value.lower().replace(" ", "-").replace("_", "-")
    if kind not in _kinds():
        raise click.BadParameter(
            f"{value!r} is no kind of plugin. There are: {', '.join(_kinds())}.", param=parameter
        )
    return kind.replace("-", "_")


def _known(name: str) -> "Kind[Any]":
    """Return a kind of the core or of an installed part of vlmkit.

    Raises:
        PluginUnavailable: what owns it is not installed.
    """
    from vlmkit.cli.streams import reserved_stdout
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.errors import PluginUnavailable
    from vlmkit.kit.install_command import install_command
    from vlmkit.plugins.names import SERVER
    from vlmkit.settings.plugins import PluginSettings

    with reserved_stdout():
        kinds = load_plugins(PluginSettings(only=())).kinds
    for kind in kinds:
        if kind.name == name:
            return kind
    raise PluginUnavailable(
        f"the kind {name!r} belongs to {SERVER}, which is not installed",
        hint=install_command(SERVER),
    )


@click.command()
@click.argument("kind", callback=_kind)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="What the plugin is called; the folder's name by default.")
@options.as_json
def new(*, kind: str, folder: Path, name: str | None, as_json: bool) -> None:
    """Write the project of a plugin of kind KIND into FOLDER.

    It is a working example with tests, to be changed into your own.
    """
    from vlmkit_testing import project

    chosen = _known(kind)
    written = project.write(chosen, folder, name or project.name_of(folder))
    check = " ".join(("vlmkit plugins check", *written.check))
    if as_json:
        files = [path.as_posix() for path in written.files]
        output.json(
            {
                "distribution": written.distribution,
                "kind": kind,
                "folder": str(folder),
                "files": files,
                "check": list(written.check),
            }
        )
        return
    article = "an" if chosen.words[0] in "aeiou" else "a"
    summary = f"{written.distribution}, {article} {chosen.words}"
    click.echo(f"{summary}: {len(written.files)} files in {folder}")
    for command in (f"cd {folder}", 'pip install -e ".[test]"', "pytest", "mypy", check):
        click.echo(f"  {command}")
