"""``vlmkit encoder``: encodes images of one model for workers on this machine or others."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from vlmkit.cli.model_command import CommandModel, configured, stated
from vlmkit.errors import ConfigError, EngineFailed
from vlmkit_grpc.credentials import Access, access_of
from vlmkit_grpc.encoders.service import EncoderService
from vlmkit_grpc.process_log import shown_log
from vlmkit_grpc.settings import DEFAULT_ENCODER_LISTEN, EncoderSettings


@click.command()
@click.argument("model", required=False)
@click.option(
    "--listen",
    metavar="ADDRESS",
    show_default=DEFAULT_ENCODER_LISTEN,
    help="HOST:PORT, or unix:PATH: the setting encoder.listen; port 0 for a free one.",
)
@configured
@click.pass_context
def encoder(
    context: click.Context,
    *,
    model: str | None,
    listen: str | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Encode images of MODEL for workers and servers, over gRPC.

    They name its address in media_encoder.addresses, with media_encoder.use = "remote".
    """
    options = stated(**{"encoder.listen": listen})
    chosen = CommandModel(model, config_file, assignments, options)
    settings = chosen.table("encoder", EncoderSettings)
    access = access_of(settings, "encoder")  # before the model is loaded
    with shown_log(is_debugging=context.obj.debug):
        is_wanted = _run(chosen, settings, access)
    if not is_wanted:
        raise EngineFailed("the media encoder of the model failed", hint="see the log above")


def _run(chosen: CommandModel, settings: EncoderSettings, access: Access) -> bool:
    """Build the media encoder and serve it; return whether the end was wanted."""
    from vlmkit_grpc.encoders.encoder import RemoteEncoder
    from vlmkit_grpc.encoders.process import serve_encoder

    digest = chosen.files().fingerprint
    built = chosen.build_encoder()
    if isinstance(built, RemoteEncoder):
        built.close()
        raise ConfigError(
            "media_encoder.use is 'remote', and this process is to encode itself",
            hint="leave the section [media_encoder] out of the config of an encoder",
        )
    return asyncio.run(serve_encoder(built, chosen.name, digest, settings, access, _show))


def _show(service: EncoderService, address: str) -> None:
    found = service.description
    click.echo(
        f"ready: the encoder of {found.model} at {address}\nidentity {found.identity}", err=True
    )
