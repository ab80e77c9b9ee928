"""Output of the command line: columns, errors, JSON and answers of models."""

import errno
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from vlmkit.cli import streams
from vlmkit.errors import ConfigError, EngineError, VlmkitError
from vlmkit.kit.one_line import one_line

if TYPE_CHECKING:
    from vlmkit.plugins.loader import Plugins
    from vlmkit.types.completion import Chunk

ALONE = "vlmkit.output"
"""The key in a click context of the stream for JSON."""
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", None))
# A model can be made to write terminal escape sequences.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def use_utf8() -> None:
    """Use UTF-8 for pipes and files, because the system's encoding may lack characters.

    A terminal keeps its own encoding.
    """
    for stream, encoding in ((sys.stdin, "utf-8-sig"), (sys.stdout, "utf-8")):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding=encoding)


def error(problem: VlmkitError, debug: bool = False) -> None:
    """Write an error and its hint to standard error, with the errors attached to it."""
    _error(problem, debug=debug)
    for other in problem.others if isinstance(problem, ConfigError) else ():
        _error(other, debug=debug)


def errors(problems: Iterable[VlmkitError]) -> None:
    """Write errors to standard error, each once."""
    singles = [each for problem in problems for each in _single(problem)]
    for problem in {(str(problem), problem.hint): problem for problem in singles}.values():
        error(problem)


def _single(problem: VlmkitError) -> Sequence[VlmkitError]:
    return problem.each() if isinstance(problem, ConfigError) else (problem,)


def _error(problem: VlmkitError, *, debug: bool) -> None:
    click.secho(f"error: {problem}", err=True, fg="red")
    hint = problem.hint
    if isinstance(problem, EngineError) and problem.__cause__ is not None and not debug:
        hint = "`vlmkit --debug ...` shows the cause"
    if hint:
        click.echo(f"hint: {hint}", err=True)


def usage_error(problem: click.ClickException) -> None:
    """Write an error in the usage of the command line to standard error."""
    text = problem.format_message()
    click.secho(f"error: {text[:1].lower()}{text[1:].rstrip('.')}", err=True, fg="red")
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    if context is not None:
        click.echo(f"hint: `{context.command_path} --help` shows how it is used", err=True)


def write_failure(problem: OSError) -> bool:
    """Report a failure to write the output, and return whether the error was one.

    Discards unwritten output, so that it is not written again when the process ends.
    """
    is_lost = problem.filename is None and problem.errno in _FULL
    try:
        sys.stdout.flush()
    except OSError as error:
        problem, is_lost = error, True
        _discard(sys.stdout)
    if is_lost:
        click.secho(f"error: the output cannot be written: {problem.strerror}", err=True, fg="red")
        click.echo("hint: make room there, or write elsewhere", err=True)
    return is_lost


def _discard(stream: TextIO) -> None:
    """Discard the buffered output of a stream."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


def bug(problem: Exception) -> None:
    """Write an unexpected error to standard error."""
    click.secho(f"error: unexpected {type(problem).__name__}: {problem}", err=True, fg="red")
    click.echo("hint: `vlmkit --debug ...` shows where; please report it", err=True)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows in aligned columns; the last column is not padded."""
    lines = [header, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header) - 1)]
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        click.secho("  ".join([*cells, line[-1]]).rstrip(), bold=not number)


def json(value: Any) -> None:
    """Write a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), file=_alone())


def json_line(value: Any) -> None:
    """Write a value as one line of JSON, at once."""
    click.echo(msgspec.json.encode(value).decode(), file=_alone())


def _alone() -> TextIO | None:
    """Return the stream for JSON; None for standard output."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(ALONE)


def write_alone(context: click.Context) -> None:
    """Reserve standard output for JSON until the command ends, or the process if both end."""
    if ALONE not in context.meta:
        ends = context.find_root().obj.ends_process
        context.meta[ALONE] = context.with_resource(streams.reserved_stdout(for_good=ends))


def write_notes(plugins: "Plugins") -> None:
    """Write warnings about the selection of plugins to standard error."""
    for note in plugins.notes:
        click.echo(f"note: {note}", err=True)


class Answer:
    """Writes an answer while it is generated; reasoning is only shown on a terminal."""

    def __init__(self) -> None:
        self._is_thinking = False

    def write(self, chunk: "Chunk") -> str:
        """Write a chunk and return its text; removes control characters for a terminal."""
        from vlmkit.types.delta import reasoning_of

        if sys.stderr.isatty() and (thought := reasoning_of(chunk.deltas)):
            click.secho(CONTROLS.sub("", thought), err=True, nl=False, dim=True)
            self._is_thinking = True
        if text := chunk.text:
            if self._is_thinking:
                click.echo("\n", err=True)
                self._is_thinking = False
            click.echo(CONTROLS.sub("", text) if sys.stdout.isatty() else text, nl=False)
            sys.stdout.flush()
        return text


def size(num_bytes: float) -> str:
    """Return a size with a suitable unit."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while num_bytes >= 1024 and power < len(units) - 1:
        num_bytes /= 1024
        power += 1
    return f"{num_bytes:.{int(power > 0)}f} {units[power]}"
