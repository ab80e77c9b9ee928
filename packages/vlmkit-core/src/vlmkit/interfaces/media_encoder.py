"""What a media encoder must do: preprocessed media to embeddings. No implementation."""

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot


class MediaEncoder(Protocol):
    """Turns preprocessed media into embeddings."""

    @property
    def identity(self) -> str:
        """Says what computes the features: weights, precision, code; for caches that outlive it.

        Never empty, and constant.
        """
        ...

    @property
    def media_kinds(self) -> frozenset[str]:
        """The kinds of media that it encodes, such as ``image``; constant."""
        ...

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each medium, in order; batched where that is faster.

        They are a function of a slot's ``inputs`` alone, which are not written, and belong to who
        asked: their memory is not used again, and nothing of slots or features is kept.

        ``encode`` runs in a thread of its own, at the same time as the engine's methods, and never
        twice at once. What it shares with the engine, such as weights, must stand that.
        """
        ...

    def close(self) -> None:
        """Free all memory; no call follows."""
        ...


@runtime_checkable
class StatesPrecision(Protocol):
    """What a media encoder may say besides: its precision."""

    @property
    def precision(self) -> str:
        """What it computes with, such as ``bfloat16`` or ``w8a8``, for people to read; constant."""
        ...
