"""A cache of media features, so that the same medium is not encoded again.

Keys are the cache scope and the slot's full sha256 digest; a cache belongs to one encoder. The
least recently used features are evicted first.
"""

from collections import OrderedDict

from vlmkit.interfaces.features import MediaFeatures

ENTRY_BYTES = 2048  # of an entry beside the contents of its arrays: objects and digests


class FeatureCache:
    """Holds features in up to ``max_bytes`` of memory, overhead included."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[bytes, bytes], MediaFeatures] = OrderedDict()
        self.num_hits = 0
        self.num_misses = 0

    @property
    def num_bytes(self) -> int:
        """Memory that the features and their entries take."""
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
        """Add features, unless they exceed the bound alone or state no size."""
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
