"""One remote encoder: the connection, whether it is the right one, and a call for each image."""

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np

from vlmkit import __version__
from vlmkit.errors import EngineError, MediaError, OutOfMemory, VlmkitError, WireError
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
from vlmkit.running.remote_runner.messages import MessageReader
from vlmkit_grpc.addresses import WorkerAddress
from vlmkit_grpc.channel_options import client_options
from vlmkit_grpc.credentials import Metadata
from vlmkit_grpc.pieces import pieces_of
from vlmkit_grpc.protocol.encoder_pb2 import DescribeEncoderReply, DescribeEncoderRequest
from vlmkit_grpc.protocol.encoder_pb2_grpc import EncoderStub
from vlmkit_grpc.protocol.worker_pb2 import Part
from vlmkit_grpc.reasons import reason_of
from vlmkit_grpc.settings import RemoteEncoderSettings

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
_KINDS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "busy",
    grpc.StatusCode.UNAUTHENTICATED: "refused",
    grpc.StatusCode.FAILED_PRECONDITION: "refused",
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.UNIMPLEMENTED: "refused",
}


class EncoderFailure(Exception):  # noqa: N818 - no error for users: RemoteEncoder handles it
    """A remote encoder did not encode an image.

    Args:
        kind: one of ``REMOTE_FAILURES``.
        reason: for the log and for errors.
        is_lost: whether the connection has to be checked before it is used again.
        had_inputs: whether the encoder had the inputs of the image.
    """

    def __init__(
        self, kind: str, reason: str, *, is_lost: bool = True, had_inputs: bool = False
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.is_lost = is_lost
        self.had_inputs = had_inputs


class WrongEncoderError(EngineError):
    """An encoder is not the expected one, or refuses the secret."""


class EncoderPeer:
    """Connects to one encoder and sends it images; may be called from any thread.

    Args:
        address: where it is.
        settings: how to connect, and the limits.
        credentials: of TLS; None without TLS.
        metadata: sent with each call.

    Attributes:
        name: its address, the same for all who use it.
        who: what errors call it.
        is_connected: whether it may be sent images.
    """

    def __init__(
        self,
        address: WorkerAddress,
        settings: RemoteEncoderSettings,
        credentials: grpc.ChannelCredentials | None,
        metadata: Metadata,
    ) -> None:
        self.name = address.target
        self.who = f"encoder {address.target}"
        self.is_connected = False
        self.pause_s = MIN_PAUSE_S
        self.retry_at_s = 0.0
        self._settings = settings
        self._metadata = metadata
        self._places = threading.BoundedSemaphore(settings.max_concurrency)
        options = client_options(settings.keepalive_s)
        options += [("grpc.max_reconnect_backoff_ms", 1000)]
        if credentials is None:
            self._channel = grpc.insecure_channel(self.name, options)
        else:
            self._channel = grpc.secure_channel(self.name, credentials, options)
        self._stub = EncoderStub(self._channel)

    def enter(self, timeout_s: float) -> bool:
        """Take one of the places for images, or return False; :meth:`leave` gives it back."""
        if timeout_s <= 0:
            return self._places.acquire(blocking=False)
        return self._places.acquire(timeout=timeout_s)

    def leave(self) -> None:
        """Give a place back."""
        self._places.release()

    def describe(
        self, timeout_s: float, digest: str, identity: str, *, waits: bool
    ) -> DescribeEncoderReply:
        """Return what the encoder states, if it is the expected one.

        Args:
            timeout_s: the time for it.
            digest: the digest of the model's files; empty for any.
            identity: what must compute the features; empty for any.
            waits: whether to wait for an encoder that cannot be reached yet.

        Raises:
            WrongEncoderError: it is another one, or refuses the secret.
            EngineError: it cannot be reached.
        """
        try:
            found: DescribeEncoderReply = self._stub.Describe(
                DescribeEncoderRequest(),
                timeout=timeout_s,
                metadata=self._metadata,
                wait_for_ready=waits,
            )
        except grpc.RpcError as error:
            is_refused = _KINDS.get(error.code()) == "refused"
            kind = WrongEncoderError if is_refused else EngineError
            raise kind(f"{self.who}: {reason_of(error)}", hint="see its log") from None
        except ValueError:  # the channel is closed
            raise EngineError(f"{self.who}: the connection is closed") from None
        if found.protocol != encoder_protocol():
            raise WrongEncoderError(
                f"{self.who}: it is vlmkit {found.version} with the protocol {found.protocol}, and "
                f"this is vlmkit {__version__} with {encoder_protocol()}",
                hint="install the same version of vlmkit at both ends",
            )
        if digest and found.model_digest != digest:
            raise self._differs("model", found.model_digest, digest)
        if identity and found.identity != identity:
            raise self._differs("identity", found.identity, identity)
        return found

    def _differs(self, what: str, found: str, expected: str) -> WrongEncoderError:
        return WrongEncoderError(
            f"{self.who}: its {what} is {found}, and {expected} is expected",
            hint="run the same files with the same settings, libraries and kind of device at both "
            "ends",
        )

    def encode(
        self, slot: MediaSlot, scope: bytes, identity: str, deadline_s: float
    ) -> tuple[MediaFeatures, bool]:
        """Return the features of an image, and whether they were cached there.

        Args:
            slot: the image.
            scope: the cache scope of its request.
            identity: what must compute the features.
            deadline_s: by ``monotonic``.

        Raises:
            MediaError: the image cannot be encoded.
            EncoderFailure: the encoder failed, was lost, or sent something else.
        """
        sent: SimpleQueue[Any] = SimpleQueue()
        had_inputs = False
        reader = MessageReader(self._settings.max_message_bytes, CODEC)
        timeout_s = max(0.001, deadline_s - time.monotonic())
        try:
            first = encoder_message_parts(Lookup(identity, scope, slot.digest), LOOKUP_BYTES)
            sent.put(first)
            call = self._stub.Encode(_parts(sent), timeout=timeout_s, metadata=self._metadata)
            for part in call:
                for message in reader.feed(part.content):
                    if isinstance(message, NotCached) and not had_inputs:
                        sent.put(self._inputs(slot))
                        had_inputs = True
                        continue
                    call.cancel()
                    return _features(message, slot)
        except grpc.RpcError as error:
            kind = _KINDS.get(error.code(), "lost")
            raise EncoderFailure(kind, reason_of(error), had_inputs=had_inputs) from None
        except ValueError:  # the channel is closed
            raise EncoderFailure("lost", "the connection is closed") from None
        except WireError as error:
            raise EncoderFailure("malformed", str(error), had_inputs=had_inputs) from None
        except EncoderFailure as error:
            error.had_inputs = had_inputs
            raise
        finally:
            sent.put(None)
        raise EncoderFailure("lost", "it ended the call", had_inputs=had_inputs)

    def _inputs(self, slot: MediaSlot) -> list[Any]:
        try:
            return encoder_message_parts(Encode(slot), self._settings.max_message_bytes)
        except WireError as error:
            raise EncoderFailure("refused", str(error), is_lost=False) from None

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _parts(sent: "SimpleQueue[Any]") -> Iterator[Part]:
    """Yield the frames in pieces; runs in a thread of gRPC."""
    while (frame := sent.get()) is not None:
        yield from pieces_of(frame)


def _features(message: object, slot: MediaSlot) -> tuple[MediaFeatures, bool]:
    """Return the features of a message.

    Raises:
        MediaError: the image cannot be encoded.
        EncoderFailure: the encoder failed, or the features are not those of this slot.
    """
    if isinstance(message, MediaError):
        raise message
    if isinstance(message, VlmkitError):
        kind = "busy" if isinstance(message, OutOfMemory) else "refused"
        raise EncoderFailure(kind, str(message), is_lost=False)
    if not isinstance(message, Encoded):
        raise EncoderFailure("malformed", "it sent another message than features")
    found = message.features
    arrays: list[Any] = [found.embeddings, *found.extra.values()]
    rows = arrays[0]
    is_right = rows.ndim == 2 and rows.dtype.kind == "f" and rows.shape[0] == slot.num_features
    if not is_right or found.num_tokens != slot.num_features or not np.isfinite(rows).all():
        raise EncoderFailure("malformed", "its features do not fit the image")
    num_bytes = sum(array.nbytes for array in arrays)
    return MediaFeatures(found.num_tokens, rows, found.extra, num_bytes), message.is_cached
