"""The service of an encoder: it carries images of workers to a media encoder, and features back.

It knows neither the model nor the address.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc

from vlmkit import __version__
from vlmkit.errors import EngineError, VlmkitError, WireError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.remote_encoder.messages import (
    CODEC,
    LOOKUP_BYTES,
    Encode,
    Encoded,
    Lookup,
    NotCached,
    encoder_message_parts,
    encoder_protocol,
)
from vlmkit.running.remote_encoder.server import EncoderServer
from vlmkit.running.remote_runner.messages import MessageReader
from vlmkit_grpc.pieces import pieces_of
from vlmkit_grpc.protocol.encoder_pb2 import DescribeEncoderReply
from vlmkit_grpc.protocol.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server
from vlmkit_grpc.settings import EncoderSettings

log = logging.getLogger(__name__)

Result: TypeAlias = MediaFeatures | VlmkitError


class EncoderService(EncoderServicer):
    """Encodes images for workers.

    Args:
        server: encodes; closed by the caller.
        model: the name of its model.
        model_digest: of the files of the model, in hex; empty if it has none.
        precision: of the computation; empty if unknown.
        settings: limits of what workers may do.
    """

    def __init__(
        self,
        server: EncoderServer,
        model: str,
        model_digest: str,
        precision: str,
        settings: EncoderSettings,
    ) -> None:
        self._server = server
        self._settings = settings
        self._is_draining = False
        self._calls: set[asyncio.Task[Any]] = set()
        self.description = DescribeEncoderReply(
            protocol=encoder_protocol(),
            version=__version__,
            model=model,
            model_digest=model_digest,
            identity=server.identity,
            media_kinds=sorted(server.media_kinds),
            precision=precision,
        )

    @property
    def num_open(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        add_EncoderServicer_to_server(self, server)

    def note_drain(self) -> None:
        """Refuse new images."""
        self._is_draining = True

    async def drained(self, timeout_s: float) -> bool:
        """Return whether all running calls ended in time."""
        if not self._calls:
            return True
        _, pending = await asyncio.wait(self._calls, timeout=timeout_s)
        return not pending

    def end(self) -> None:
        """End all calls."""
        for call in self._calls:
            call.cancel()

    async def Describe(self, request: Any, context: Any) -> DescribeEncoderReply:  # noqa: ARG002, N802
        """State which features are computed here."""
        return self.description

    async def Encode(self, request_iterator: Any, context: Any) -> None:  # noqa: ARG002, N802
        """Return the features of one image."""
        if self._is_draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the encoder drains")
        call = asyncio.current_task()
        assert call is not None  # noqa: S101 - gRPC calls this in a task
        self._calls.add(call)
        try:
            await self._converse(_Call(context, self._settings))
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call stalled")
        finally:
            self._calls.discard(call)

    async def _converse(self, call: "_Call") -> None:
        """Answer one call.

        Raises:
            WireError: a message is malformed, too large or not the expected one.
            TimeoutError: the worker does not send or read.
        """
        asked = await call.read(LOOKUP_BYTES)
        if not isinstance(asked, Lookup):
            raise WireError("the first message asks for nothing")
        server = self._server
        if asked.identity != server.identity:
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is another encoder")
        features = server.cached(asked.scope, asked.digest)
        if features is not None:
            await call.write(Encoded(features, is_cached=True))
            return
        await call.write(NotCached())
        message = await call.read(self._settings.max_message_bytes)
        if not isinstance(message, Encode) or message.slot.digest != asked.digest:
            raise WireError("the second message has not the inputs that were asked for")
        result = await self._encoded(asked.scope, message.slot)
        del message  # its inputs are large
        if isinstance(result, VlmkitError):
            await call.write(result)
        else:
            await call.write(Encoded(result, is_cached=False))

    async def _encoded(self, scope: bytes, slot: MediaSlot) -> Result:
        """Return the features of an image, or the error of the encoder."""
        if slot.kind not in self._server.media_kinds:
            return EngineError(f"the encoder takes no {slot.kind!r}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def deliver(result: Result) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(partial(_set, future, result))

        self._server.start(scope, slot, deliver)
        try:
            return await future
        finally:
            self._server.cancel(scope, slot.digest, deliver)


class _Call:
    """The messages of one call.

    Args:
        context: the call.
        settings: its limits.
    """

    def __init__(self, context: Any, settings: EncoderSettings) -> None:
        self._context = context
        self._settings = settings

    async def read(self, max_bytes: int) -> Any:
        """Return the next message, of at most so many bytes.

        Raises:
            WireError: it is malformed or too large, or the worker sends no more.
            TimeoutError: it does not arrive in time.
        """
        reader = MessageReader(max_bytes, CODEC)
        async with asyncio.timeout(self._settings.stall_timeout_s):
            async for content in self._contents():
                for message in reader.feed(content):
                    if reader.is_within_frame:
                        raise WireError("a message came too early")
                    return message
        raise WireError("the call ended within a message")

    async def write(self, message: object) -> None:
        """Send a message.

        Raises:
            TimeoutError: the worker does not read.
        """
        try:
            parts = encoder_message_parts(message, self._settings.max_message_bytes)
        except WireError as error:
            log.warning("features of an image cannot be sent: %s", error)
            refusal = EngineError("the features of this image cannot be sent", hint="see the log")
            parts = encoder_message_parts(refusal, self._settings.max_message_bytes)
        for piece in pieces_of(parts):
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await self._context.write(piece)

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        """End the call with an error."""
        await self._context.abort(code, text)
        raise AssertionError  # gRPC raises above

    async def _contents(self) -> AsyncIterator[bytes]:
        while (part := await self._context.read()) is not grpc.aio.EOF:
            yield part.content


def _set(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():
        future.set_result(result)
