"""``vlmkit batch``: answers a file of requests without a server."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vlmkit.cli import options
from vlmkit.kit import heap

if TYPE_CHECKING:
    from vlmkit_server.apis.batches.batch_file import BatchFile
    from vlmkit_server.commands.serve import Prepared

PERIOD_S = 1.0
INTERRUPTED = 130
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("model", required=False)
@click.argument("input_file", metavar="INPUT", type=FILE)
@click.argument("output_file", metavar="OUTPUT", type=FILE)
@click.option(
    "--images",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_default="the folder of INPUT",
    help="Folder of images that lines name by a relative path in place of a URL.",
)
@options.configured
@click.pass_context
def batch(
    context: click.Context,
    *,
    model: str | None,
    input_file: Path,
    output_file: Path,
    images: Path | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Answer the requests in INPUT, one line each, and write the answers to OUTPUT.

    Both files have the format of OpenAI's batches. OUTPUT has one line for each line of INPUT, in
    the same order. The same command goes on where an earlier one was stopped.
    """
    from vlmkit_server.apis.batches.batch_file import num_lines
    from vlmkit_server.commands.serve import prepared

    with heap.paused_collection():
        names = [] if model is None else [model]
        found = prepared(names, config_file, assignments, {}, listens=False)
    num = num_lines(input_file, found.settings.max_body_bytes)
    images = images or input_file.absolute().parent
    if not asyncio.run(_answer(found, input_file, output_file, images, num)):
        context.exit(INTERRUPTED)


async def _answer(prepared: "Prepared", source: Path, target: Path, images: Path, num: int) -> bool:
    """Answer the lines of a file; return whether all were answered.

    Raises:
        VlmkitError: a model cannot be loaded, or a file cannot be read or written.
    """
    from vlmkit_server.apis.batches.batch_file import BatchFile, OutputFile
    from vlmkit_server.commands.components import request_fields
    from vlmkit_server.offline import offline_server

    settings = prepared.settings
    with closing(OutputFile(target)) as output:
        async with offline_server(
            prepared.specs,
            settings,
            fetch=prepared.config.fetch,
            apis=prepared.apis,
            tool_sources=prepared.tool_sources,
            request_fields=request_fields(prepared.plugins),
            component_names=prepared.component_names,
        ) as server:
            run = BatchFile(
                server.client, output, images, settings.max_body_bytes, server.num_concurrent
            )
            server.on_failure(run.stop)
            _on_interrupt(run)
            showing = asyncio.create_task(_show_progress(run, num))
            try:
                await run.run(source)
            finally:
                showing.cancel()
                with suppress(asyncio.CancelledError):
                    await showing
    _show_end(run, num)
    return run.num_before + run.num_answered >= num


def _on_interrupt(run: "BatchFile") -> None:
    """Stop at SIGINT or SIGTERM; what is answered by then is written."""
    with suppress(NotImplementedError):  # on Windows Ctrl-C ends the program
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, run.stop)


async def _show_progress(run: "BatchFile", num: int) -> None:
    """Write the progress to standard error, if it is a terminal."""
    start_s = time.monotonic()
    while sys.stderr.isatty():
        await asyncio.sleep(PERIOD_S)
        per_s = run.num_answered / (time.monotonic() - start_s)
        done = run.num_before + run.num_answered
        left = f"{(num - done) / per_s:,.0f} s left" if per_s else "waiting"
        failed = f"{sum(run.num_failed.values()):,} failed"
        click.echo(
            f"\r{done:,} of {num:,}, {failed}, {per_s:,.1f}/s, {left}    ", err=True, nl=False
        )


def _show_end(run: "BatchFile", num: int) -> None:
    if sys.stderr.isatty():
        click.echo("\r" + " " * 70 + "\r", err=True, nl=False)
    before = f", {run.num_before:,} by an earlier run" if run.num_before else ""
    click.echo(f"{run.num_before + run.num_answered:,} of {num:,} lines answered{before}", err=True)
    for code, count in sorted(run.num_failed.items()):
        click.echo(f"failed: {count:,} {code}", err=True)
