"""The command: a line of JSON for each picture, in the order of their names."""

import json
from pathlib import Path

import click

import vlmkit
from vlmkit.errors import RequestError, VlmkitError

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}


@click.command(name="yourname")
@click.argument("model")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--ask", default="Describe this picture.", show_default=True, help="The question.")
@click.option(
    "-m", "--max-tokens", type=click.IntRange(min=1), default=64, help="Most tokens of an answer."
)
def describe(model: str, folder: Path, ask: str, max_tokens: int) -> None:
    """Ask MODEL the same of every picture in FOLDER.

    Writes a line of JSON for each one: its name and the answer, or why there is none.
    """
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not pictures:
        raise VlmkitError(
            f"folder {str(folder)!r} has no pictures", hint=f"looked for {', '.join(SUFFIXES)}"
        )
    with vlmkit.load(model) as loaded:
        for picture in pictures:
            row = {"picture": picture.name}
            try:
                done = loaded.generate(ask, images=[picture], max_tokens=max_tokens)
                row["answer"] = done.text
            except RequestError as error:  # a broken file is no reason to stop
                row["error"] = str(error)
            click.echo(json.dumps(row, ensure_ascii=False))
