"""Messages between a pipeline and the process that encodes its media: frames of the wire codec.

A pipeline first asks for the features of a digest, because the inputs of an image have megabytes.
It sends them only if the other process has no features. A conversation ends with the features, or
with an error of :mod:`vlmkit.errors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit.errors import WireError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.remote_runner.messages import message_parts, protocol
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.codec import Codec
from vlmkit.wire.frames import Buffer
from vlmkit.wire.type_names import TYPES


@dataclass(frozen=True, slots=True)
class Lookup:
    """Return the features of a medium if they are cached.

    Attributes:
        identity: the encoder that the pipeline expects; another one refuses.
        scope: the cache scope of the request.
        digest: the digest of the medium's slot.
    """

    identity: str
    scope: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class NotCached:
    """The features are not cached: send the inputs."""


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode the medium that was asked for, with these inputs."""

    slot: MediaSlot


@dataclass(frozen=True, slots=True)
class Encoded:
    """The features of the medium.

    Attributes:
        features: with arrays that NumPy has.
        is_cached: whether they were computed before.
    """

    features: MediaFeatures
    is_cached: bool


MESSAGES: Mapping[str, type[Any]] = {
    **TYPES,
    "encoder.lookup": Lookup,
    "encoder.not_cached": NotCached,
    "encoder.encode": Encode,
    "encoder.encoded": Encoded,
}
CODEC = Codec(MESSAGES)
"""The codec of both ends."""
LOOKUP_BYTES = 2**16
"""The most bytes of a lookup."""


def encoder_protocol() -> str:
    """Return what both ends must have in common."""
    return protocol(MESSAGES)


def encoder_message_parts(message: object, max_bytes: int) -> list[Buffer]:
    """Return the bytes of a message in parts.

    Raises:
        WireError: it holds a value that cannot be sent, or has more bytes than allowed.
    """
    try:
        return message_parts(message, max_bytes, CODEC)
    except NotSerializable as error:
        raise WireError(f"a message cannot be sent: {error}") from error
