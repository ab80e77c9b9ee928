"""``vlmkit mcp``: serves a model over the Model Context Protocol."""

import asyncio
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

import vlmkit
from vlmkit.errors import VlmkitError
from vlmkit.settings.fetch import FetchSettings
from vlmkit_mcp.background_model import BackgroundModel
from vlmkit_mcp.image_opener import ImageOpener


@click.command()
@click.argument("model")
@click.option(
    "--folder",
    "folders",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder whose pictures may be asked about; may be repeated. None by default.",
)
@click.option("--fetch", is_flag=True, help="Fetch pictures from any public https address.")
@click.option(
    "--fetch-from",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="Fetch pictures from this host alone; may be repeated.",
)
@click.option(
    "-m",
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Most tokens of an answer: the setting pipeline.max_output_tokens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Speak over HTTP at this port of 127.0.0.1, in place of standard input and output; "
    "0 takes a free one.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file of settings; VLMKIT_CONFIG by default.",
)
def mcp(
    *,
    model: str,
    folders: Sequence[Path],
    fetch: bool,
    hosts: Sequence[str],
    max_tokens: int | None,
    port: int | None,
    config_file: Path | None,
) -> None:
    """Let agents ask MODEL about pictures, over the Model Context Protocol.

    An agent's program starts this command and speaks with it over its standard input and output.
    """
    from vlmkit.kit.image_fetcher import ImageFetcher
    from vlmkit_mcp import transports
    from vlmkit_mcp.server import ImageTool, make_server

    if fetch and hosts:
        raise click.UsageError("--fetch takes every public host: leave --fetch-from out")
    rules = FetchSettings(enabled=fetch or bool(hosts), allowed_hosts=tuple(hosts))
    opener = ImageOpener(folders, ImageFetcher(rules) if rules.enabled else None)
    pipeline = {} if max_tokens is None else {"max_output_tokens": max_tokens}
    load = partial(vlmkit.load, model, config=config_file, pipeline=pipeline)
    background = BackgroundModel(load, _print_error)
    server = make_server(ImageTool(background, opener))
    try:
        if port is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would wait for more input
            asyncio.run(transports.over_stdio(server, background.start))
        else:
            transports.over_http(server, port, background.start)
    finally:
        background.close()


def _print_error(error: Exception) -> None:
    """Print to standard error why loading failed; calls report the error, too."""
    click.echo(f"error: {error}", err=True)
    if isinstance(error, VlmkitError) and error.hint:
        click.echo(f"hint: {error.hint}", err=True)
