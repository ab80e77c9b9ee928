"""``vlmkit plugins new``: the project of a plugin, with tests that pass."""

from pathlib import Path

import click

from vlmkit.cli import options, output


def _kinds() -> list[str]:
    from vlmkit_testing.project import EXAMPLES

    return [name.replace("_", "-") for name in EXAMPLES]


def _kind(_: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the name of a kind as code has it; blanks or hyphens may stand between its words."""
    kind = value.lower().replace(" ", "-").replace("_", "-")
    if kind not in _kinds():
        raise click.BadParameter(
            f"{value!r} is no kind of plugin. There are: {', '.join(_kinds())}.", param=parameter
        )
    return kind.replace("-", "_")


@click.command()
@click.argument("kind", callback=_kind)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="What the plugin is called; the folder's name by default.")
@options.as_json
def new(*, kind: str, folder: Path, name: str | None, as_json: bool) -> None:
    """Write the project of a plugin of kind KIND into FOLDER.

    It is a working example with tests, to be changed into your own.
    """
    from vlmkit.plugins import project
    from vlmkit.plugins.kinds import KINDS

    chosen = next(each for each in KINDS if each.name == kind)
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
    told = f"{written.distribution}, {article} {chosen.words}"
    click.echo(f"{told}: {len(written.files)} files in {folder}")
    for command in (f"cd {folder}", 'pip install -e ".[test]"', "pytest", "mypy", check):
        click.echo(f"  {command}")
