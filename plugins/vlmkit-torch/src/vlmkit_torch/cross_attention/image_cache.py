"""Stores keys and values of images, once for all sequences that attend to an image.

They are computed once and never change. Sequences of one scope share an image by its content.
Unused images stay until their room is needed; the least recently used one is evicted first. A
cached prefix that extends past an image is usable only while the image is stored: see
:meth:`ImageCache.usable_tokens`. Counts rows, and computes nothing with them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.cross_attention.spec import AttendingSpan

Key: TypeAlias = tuple[bytes, bytes]
"""A scope, and the digest of an image."""


@dataclass(slots=True, eq=False)
class CachedImage:
    """What a decoder's layers store of one image.

    Attributes:
        num_rows: of its keys and values.
        layers: keys and values ``[kv_heads, rows, head]`` by layer.
        is_complete: whether all layers have stored theirs.
        num_users: admitted sequences that attend to it.
    """

    num_rows: int
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    is_complete: bool = False
    num_users: int = 0

    @property
    def num_bytes(self) -> int:
        """Memory that its keys and values take."""
        arrays = (array for pair in self.layers.values() for array in pair)
        return sum(array.numel() * array.element_size() for array in arrays)


class ImageCache:
    """Stores up to ``max_rows`` rows of images.

    Args:
        max_rows: rows of all images, including those that are still to be computed.
        keeps_unused: whether images stay after their last user is released.
    """

    def __init__(self, max_rows: int, *, keeps_unused: bool) -> None:
        self.max_rows = max_rows
        self._keeps_unused = keeps_unused
        self._images: dict[Key, CachedImage] = {}
        self._unused: OrderedDict[Key, None] = OrderedDict()
        self._in_use: dict[SequenceView, dict[int, Key]] = {}

    @property
    def num_users(self) -> int:
        """Admitted sequences that attend to images."""
        return len(self._in_use)

    @property
    def num_rows(self) -> int:
        """Rows of all images, including those that are still to be computed."""
        return sum(image.num_rows for image in self._images.values())

    @property
    def num_used_rows(self) -> int:
        """Rows of the images that a sequence uses."""
        return sum(image.num_rows for image in self._images.values() if image.num_users)

    def refuse_too_many(self, prompt: Prompt, spans: tuple[AttendingSpan, ...]) -> None:
        """Refuse a prompt whose images exceed the cache.

        Raises:
            RequestError: they have too many rows.
        """
        num_rows = sum(_num_rows(prompt, spans).values())
        if num_rows > self.max_rows:
            raise RequestError(
                f"the prompt's images have {num_rows} rows to attend to, and this engine keeps "
                f"{self.max_rows} at most",
                hint="show fewer or smaller images, or raise engine.cache_gib",
            )

    def usable_tokens(self, sequence: SequenceView, num_cached: int) -> int:
        """Return how many of a sequence's cached tokens need not be computed again.

        Later tokens may attend to an image that was evicted. The image is computed together with
        its placeholder token, so the placeholder must not count as cached.
        """
        for index, span in reversed(list(enumerate(_spans(sequence)))):
            if span.start < num_cached < span.stop and not self._is_cached(sequence, index):
                num_cached = span.start
        return num_cached

    def admit(self, sequence: SequenceView, num_cached: int) -> bool:
        """Make room for all images that tokens after the cached ones attend to; False if full."""
        keys = {
            index: _key(sequence, index)
            for index, span in enumerate(_spans(sequence))
            if span.stop > num_cached
        }
        if not keys:
            return True
        rows = _num_rows(sequence.prompt, _spans(sequence))
        new = {key: rows[key[1]] for key in keys.values() if key not in self._images}
        if not self._make_room(sum(new.values()), keeping=set(keys.values())):
            return False
        self._images |= {key: CachedImage(num_rows) for key, num_rows in new.items()}
        for key in set(keys.values()):
            self._images[key].num_users += 1
            self._unused.pop(key, None)
        self._in_use[sequence] = keys
        return True

    def image(self, sequence: SequenceView, index: int) -> CachedImage:
        """Return an image that an admitted sequence attends to."""
        return self._images[self._in_use[sequence][index]]

    def release(self, sequence: SequenceView, *, is_finite: bool = True) -> None:
        """Release a sequence's images.

        Args:
            sequence: an admitted one.
            is_finite: whether its values were finite; if not, none of its images stays unused.
        """
        for key in set(self._in_use.pop(sequence, {}).values()):
            image = self._images[key]
            image.num_users -= 1
            if not image.num_users:
                if self._keeps_unused and image.is_complete and is_finite:
                    self._unused[key] = None
                else:
                    del self._images[key]

    def free(self) -> None:
        """Free all memory."""
        self._images.clear()
        self._unused.clear()
        self._in_use.clear()

    def _is_cached(self, sequence: SequenceView, index: int) -> bool:
        image = self._images.get(_key(sequence, index))
        return image is not None and image.is_complete

    def _make_room(self, num_rows: int, keeping: set[Key]) -> bool:
        """Evict unused images until some rows fit; False, and no eviction, if they cannot."""
        num_over = self.num_rows + num_rows - self.max_rows
        evicted = []
        for key in self._unused:
            if num_over <= 0:
                break
            if key not in keeping:
                evicted.append(key)
                num_over -= self._images[key].num_rows
        if num_over > 0:
            return False
        for key in evicted:
            del self._images[key], self._unused[key]
        return True


def _spans(sequence: SequenceView) -> tuple[AttendingSpan, ...]:
    spans: tuple[AttendingSpan, ...] = sequence.plan.state.attending_spans
    return spans


def _key(sequence: SequenceView, index: int) -> Key:
    return sequence.scope, sequence.prompt.media[index].digest


def _num_rows(prompt: Prompt, spans: tuple[AttendingSpan, ...]) -> dict[bytes, int]:
    """Return the rows of a prompt's images, each content once."""
    return {s.digest: span.num_rows for s, span in zip(prompt.media, spans, strict=True)}
