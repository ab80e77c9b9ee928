"""The process of an encoder: serves a media encoder over gRPC until it drains or fails."""

import asyncio
from collections.abc import Callable

from vlmkit.interfaces.media_encoder import MediaEncoder, StatesPrecision
from vlmkit.running.remote_encoder.server import EncoderServer
from vlmkit_grpc.credentials import Access
from vlmkit_grpc.encoders.service import EncoderService
from vlmkit_grpc.server_process import ServerProcess
from vlmkit_grpc.settings import EncoderSettings

SERVICE = "vlmkit.encoder.v1.Encoder"
CLOSE_S = 10.0  # for an image that is being encoded at the end


async def serve_encoder(
    encoder: MediaEncoder,
    model: str,
    model_digest: str,
    settings: EncoderSettings,
    access: Access,
    on_listening: Callable[[EncoderService, str], None],
) -> bool:
    """Serve a media encoder, close it, and return whether the end was wanted.

    Args:
        encoder: encodes.
        model: the name of its model.
        model_digest: of the files of the model, in hex; empty if it has none.
        settings: the limits.
        access: the address, and what workers must prove.
        on_listening: called with the service and the address when the port is open.

    Raises:
        ConfigError: the address cannot be used.
    """
    process = ServerProcess("encoder", [SERVICE], settings, access)
    server = EncoderServer(encoder, settings.cache_bytes, process.fail_soon)
    try:
        precision = encoder.precision if isinstance(encoder, StatesPrecision) else ""
        service = EncoderService(server, model, model_digest, precision, settings)
        return await process.serve(service, lambda: on_listening(service, process.address))
    finally:
        await asyncio.to_thread(server.close, CLOSE_S)
