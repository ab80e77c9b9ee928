"""Features by content, so that a medium that was there before is not encoded again.

Keys hold the scope and the slot's full sha256 digest; one cache belongs to one encoder. Least
recently used features go first when the cache is full.
"""

from collections import OrderedDict

from vlmkit.interfaces.features import MediaFeatures

ENTRY_BYTES = 2048  # what keeping an entry takes beside its arrays' contents: objects and digests


class FeatureCache:
    """Keeps features in up to ``max_bytes`` of memory, their entries included."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[bytes, bytes], MediaFeatures] = OrderedDict()
        self.num_hits = 0
        self.num_misses = 0

    @property
    def num_bytes(self) -> int:
        """Memory that the kept features take, with their entries."""
        return self._num_bytes

    def get(self, scope: bytes, digest: bytes) -> MediaFeatures | None:
        """Return the features of a medium, or None."""
        features = self._entries.get((scope, digest))
        if features is None:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._entries.move_to_end((scope, digest))
        return features

    def put(self, scope: bytes, digest: bytes, features: MediaFeatures) -> None:
        """Keep features, unless they alone are over the bound or do not say their size."""
        if (scope, digest) in self._entries:
            return
        if features.num_bytes <= 0 or _num_bytes(features) > self._max_bytes:
            return
        self._entries[scope, digest] = features
        self._num_bytes += _num_bytes(features)
        while self._num_bytes > self._max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self._num_bytes -= _num_bytes(dropped)


def _num_bytes(features: MediaFeatures) -> int:
    return features.num_bytes + ENTRY_BYTES
