"""The interface of media encoders, which turn preprocessed media into embeddings.

Holds no implementation.
"""

from collections.abc import Mapping, Sequence as Seq
from typing import Protocol, runtime_checkable

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot


class MediaEncoder(Protocol):
    """Turns preprocessed media into embeddings."""

    @property
    def identity(self) -> str:
        """Identifies what computes the features, for caches that outlive the encoder.

        Covers weights, precision and code. Never empty; constant.
        """
        ...

    @property
    def media_kinds(self) -> frozenset[str]:
        """The supported kinds of media, such as ``image``; constant."""
        ...

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each medium, in order; may compute them as a batch.

        Features must depend only on a slot's ``inputs``, which must not be modified. The caller
        owns the features: the encoder must not reuse their memory, nor keep slots or features.

        ``encode`` runs in its own thread, concurrently with the engine's methods, and never twice
        at once unless the encoder states that (:class:`EncodesConcurrently`). State shared with the
        engine, such as weights, must be safe for that.
        """
        ...

    def close(self) -> None:
        """Free all memory; no other call follows."""
        ...


@runtime_checkable
class StatesPrecision(Protocol):
    """An optional property of a media encoder: its precision."""

    @property
    def precision(self) -> str:
        """The precision of its computation, such as ``bfloat16`` or ``w8a8``, for display.

        Constant.
        """
        ...


@runtime_checkable
class EncodesConcurrently(Protocol):
    """An optional property of a media encoder: how many calls of ``encode`` may run at once."""

    @property
    def max_concurrency(self) -> int:
        """The maximum number of concurrent calls, from 1 to 64; constant.

        Each runs in its own thread. It is for an encoder that waits for other machines or
        processes; calls that compute in this process take cores from each other. Without this
        property, one call runs at a time.
        """
        ...


@runtime_checkable
class EncodesInScopes(Protocol):
    """An optional method of a media encoder that caches features beyond one call.

    Such as in another process, for several pipelines.
    """

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        """Return the features of each medium, in order; called in place of ``encode``.

        Args:
            slots: as for ``encode``.
            scopes: the cache scope of each. A cache must not return the features of one scope for
                another, so that no tenant learns from response times what others have sent.
        """
        ...


@runtime_checkable
class CopiesToHost(Protocol):
    """An optional method of a media encoder whose features NumPy cannot always read."""

    def to_host(self, features: MediaFeatures) -> MediaFeatures:
        """Return equal features in the memory of this machine, of types that NumPy has.

        A wider type must hold the same values: float32 for bfloat16.
        """
        ...


@runtime_checkable
class CountsEncodings(Protocol):
    """An optional method of a media encoder: counters of its own."""

    def counters(self) -> Mapping[str, int]:
        """Return counters for ``RunnerStats.counters``; called from any thread.

        They never fall, and their names are constant.
        """
        ...


NUM_REMOTE = "num_media_encoded_remotely"
NUM_REMOTE_FALLBACKS = "num_remote_fallbacks"
NUM_REMOTE_FAILURES = "num_remote_failures."
REMOTE_FAILURES = ("absent", "busy", "lost", "timeout", "refused", "malformed")
"""The counters of an encoder that sends media to other processes.

Media that these encoded, media that the local encoder encoded in their place, and failed attempts
by reason: ``NUM_REMOTE_FAILURES`` with one of ``REMOTE_FAILURES``.
"""
