"""Cache events of slots: their committed tokens as blocks, for observers of the cache.

Slots share prefixes token by token and have no blocks. Events describe them in whole blocks of
:data:`EVENT_BLOCK_TOKENS`, so an index lacks at most the tokens of a partial block. Two slots may
hold equal blocks; such a block is stored with the first slot and removed with the last.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable

from vlmkit.interfaces.cache_events import CacheBlock, CacheListener
from vlmkit.kit.prefix import Part
from vlmkit_onnx.slots.slot import Slot

EVENT_BLOCK_TOKENS = 16


class SlotEvents:
    """Reports which blocks slots hold.

    Args:
        listener: receives the blocks.
        block_tokens: tokens of a block.
    """

    def __init__(self, listener: CacheListener, block_tokens: int = EVENT_BLOCK_TOKENS) -> None:
        self._listener = listener
        self._block_tokens = block_tokens
        self._num_slots_with: Counter[bytes] = Counter()

    def follow(self, slot: Slot, num_kept: int, source: Slot) -> None:
        """Report what a slot holds after its first tokens were taken over from a slot.

        Args:
            slot: the changed slot.
            num_kept: tokens that it took over; all its committed ones.
            source: the slot that it took them over from; may be the same.
        """
        kept = source.event_keys[: num_kept // self._block_tokens]
        self._num_slots_with.update(kept)  # first, so that a block of both is not removed
        self._drop(slot.event_keys)
        slot.event_keys = kept

    def extend(self, slot: Slot) -> None:
        """Report the blocks that a slot's newly committed tokens complete."""
        while (len(slot.event_keys) + 1) * self._block_tokens <= slot.num_committed:
            block = _next_block(slot, self._block_tokens)
            if not self._num_slots_with[block.key]:
                self._listener.stored(block)
            self._num_slots_with[block.key] += 1
            slot.event_keys.append(block.key)

    def clear(self, slot: Slot) -> None:
        """Report that a slot holds nothing any more."""
        self._drop(slot.event_keys)
        slot.event_keys = []

    def _drop(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._num_slots_with[key] -= 1
            if not self._num_slots_with[key]:
                del self._num_slots_with[key]
                self._listener.removed(key)


def _next_block(slot: Slot, block_tokens: int) -> CacheBlock:
    """Return the first block of a slot that has no key yet.

    The key covers scope, tokens, and the media and atomic spans that overlap the block.
    """
    start = len(slot.event_keys) * block_tokens
    stop = start + block_tokens
    parent = slot.event_keys[-1] if slot.event_keys else b""
    tokens = tuple(slot.ids[start:stop].tolist())
    media, spans = (
        [part for part in parts if _overlaps(part, start, stop)] for parts in slot.parts
    )
    digest = hashlib.sha256(parent or hashlib.sha256(slot.scope).digest())
    digest.update(array("i", tokens).tobytes())
    for part in (*media, *spans):
        ends = (part.start, part.stop)
        digest.update(b"".join(end.to_bytes(8, "big") for end in ends) + part.digest)
    digest.update(len(media).to_bytes(8, "big"))
    return CacheBlock(
        digest.digest(), parent, tokens, tuple(part.digest for part in media), slot.scope
    )


def _overlaps(part: Part, start: int, stop: int) -> bool:
    return part.start < stop and part.stop > start
