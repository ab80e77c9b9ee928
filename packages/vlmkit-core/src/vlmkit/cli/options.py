"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vlmkit.cli import output

Command = Callable[..., Any]


def configured(command: Command) -> Command:
    """Add ``--config`` and ``--set``, which can change every setting."""
    for option in (
        click.option(
            "--set",
            "assignments",
            metavar="SECTION.KEY=VALUE",
            multiple=True,
            help="Override one setting; may be repeated.",
        ),
        click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            show_default="VLMKIT_CONFIG",
            help="TOML file of settings.",
        ),
    ):
        command = option(command)
    return command


def sampled(command: Command) -> Command:
    """Add the most common sampling options."""
    for option in (
        click.option(
            "--seed",
            type=int,
            show_default="a random one",
            help="Make random choices repeatable.",
        ),
        click.option(
            "--temperature",
            type=click.FloatRange(0, 2),
            show_default="the model's",
            help="0 chooses the likeliest token.",
        ),
        click.option(
            "-m",
            "--max-tokens",
            type=click.IntRange(min=1),
            help="Maximum number of tokens to generate; by default the model's own limit, or what "
            "its context holds.",
        ),
    ):
        command = option(command)
    return command


def as_json(command: Command) -> Command:
    """Add ``--json``, which reserves standard output for the JSON."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_alone, help="Write JSON."
    )(command)


def as_json_lines(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--jsonl``, which reserves standard output for the lines."""
    return click.option(
        "--jsonl", "as_json_lines", is_flag=True, is_eager=True, callback=_alone, help=text
    )


def _alone(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        output.write_alone(context)
    return value


def stated(**values: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in values.items() if value is not None}
