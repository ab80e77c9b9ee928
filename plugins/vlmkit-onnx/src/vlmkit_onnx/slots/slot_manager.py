"""Assigns slots to sequences, and evicts what released sequences left.

Holds no arrays of the model and does not use ONNX Runtime.
"""

from typing import NamedTuple

import numpy as np

from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import prefix
from vlmkit_onnx.slots.cache_events import EVENT_BLOCK_TOKENS, SlotEvents
from vlmkit_onnx.slots.slot import Slot, choose_target, longest_prefix


class SlotAssignment(NamedTuple):
    """A slot for a new sequence.

    Attributes:
        slot: its index.
        num_cached: first tokens of the sequence that the slot holds, after the copy.
        source: the slot to copy them from; None if no copy is needed.
        is_stale: whether the slot holds tokens that are of no use.
    """

    slot: int
    num_cached: int
    source: int | None
    is_stale: bool


class SlotManager:
    """Tracks which sequence has which slot, and what every slot holds.

    Args:
        num_slots: most sequences at once.
        slot_tokens: longest sequence of a slot.
        capacity_tokens: most tokens of all slots together.
        shares_prefixes: whether other sequences may use what a slot holds.
        copies: whether a prefix can be copied from one slot to another.
    """

    def __init__(
        self,
        num_slots: int,
        slot_tokens: int,
        capacity_tokens: int,
        *,
        shares_prefixes: bool = True,
        copies: bool = True,
    ) -> None:
        self.capacity_tokens = capacity_tokens
        self._shares = shares_prefixes
        self._copies = copies
        self._slots = [Slot(np.zeros(slot_tokens, np.int32)) for _ in range(num_slots)]
        self._index_of: dict[SequenceView, int] = {}
        self._clock = 0
        self._to_discard: set[int] = set()
        self._events: SlotEvents | None = None

    def set_cache_listener(
        self, listener: CacheListener, block_tokens: int = EVENT_BLOCK_TOKENS
    ) -> None:
        """Report what slots hold to a listener in whole blocks, if other sequences may use it."""
        if self._shares:
            self._events = SlotEvents(listener, block_tokens)

    @property
    def num_sequences(self) -> int:
        """Sequences that have a slot."""
        return len(self._index_of)

    @property
    def num_tokens(self) -> int:
        """Tokens that take memory: reserved by owners, or kept for later sequences."""
        return sum(slot.num_reserved for slot in self._slots)

    @property
    def num_owned(self) -> int:
        """Tokens that admitted sequences have room for."""
        return sum(slot.num_reserved for slot in self._slots if slot.owner is not None)

    def slot(self, sequence: SequenceView) -> int:
        """Return the slot of an admitted sequence."""
        return self._index_of[sequence]

    def num_held(self, slot: int) -> int:
        """Return how many tokens' keys and values a slot holds."""
        return self._slots[slot].num_tokens

    def is_owned(self, slot: int) -> bool:
        """Return whether a sequence has this slot."""
        return self._slots[slot].owner is not None

    def take_discarded(self) -> list[int]:
        """Return the slots whose memory can be freed, and forget them."""
        slots = [index for index in self._to_discard if not self._slots[index].num_tokens]
        self._to_discard.clear()
        return slots

    def admit(self, sequence: SequenceView) -> SlotAssignment | None:
        """Assign a slot with room for a sequence's tokens and one more; None if there is none.

        Raises:
            ValueError: the sequence has a slot already.
        """
        if sequence in self._index_of:
            raise ValueError(f"sequence {sequence.id!r} is admitted already")
        num_tokens = len(sequence) + 1
        if num_tokens > len(self._slots[0].ids) or not self._may_hold(num_tokens):
            return None
        free = [index for index, slot in enumerate(self._slots) if slot.owner is None]
        if not free:
            return None
        source, num_cached = None, 0
        if self._shares:
            candidates = range(len(self._slots)) if self._copies else free
            source, num_cached = longest_prefix(self._slots, candidates, sequence)
        target = choose_target(self._slots, free, source, num_cached, copies=self._copies)
        copied_from = None if source == target else source
        has_tokens = self._slots[target].num_tokens > 0
        is_stale = has_tokens and (num_cached == 0 or copied_from is not None)
        if self._events is not None:
            self._events.follow(
                self._slots[target], num_cached, self._slots[target if source is None else source]
            )
        self._assign(sequence, target, num_cached, num_tokens)
        self._evict_down_to_capacity()
        return SlotAssignment(target, num_cached, copied_from, is_stale)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        slot = self._slot_of(sequence)
        more = num_tokens - slot.num_reserved
        if more <= 0:
            return True
        if num_tokens > len(slot.ids) or not self._may_hold(more):
            return False
        slot.num_reserved = num_tokens
        self._evict_down_to_capacity()
        return True

    def set_computed(self, sequence: SequenceView, num_tokens: int) -> None:
        """Record that a sequence's slot holds exactly its first ``num_tokens``."""
        slot = self._slot_of(sequence)
        slot.num_tokens = num_tokens
        self._touch(slot)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let other sequences start from the first ``num_tokens`` of an admitted sequence."""
        slot = self._slot_of(sequence)
        start = slot.num_committed
        slot.ids[start:num_tokens] = sequence.tokens(start, num_tokens)
        slot.num_committed = num_tokens
        if self._events is not None:
            self._events.extend(slot)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop the tokens after the first ``num_tokens`` of an admitted sequence.

        Raises:
            ValueError: they were committed.
        """
        slot = self._slot_of(sequence)
        if num_tokens < slot.num_committed:
            raise ValueError(f"sequence {sequence.id!r} has more committed than {num_tokens}")
        slot.num_tokens = min(slot.num_tokens, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Release a sequence's slot; keep its tokens for later prompts if they may be shared."""
        index = self._index_of.pop(sequence)
        slot = self._slots[index]
        slot.owner = None
        if not self._shares:
            slot.num_committed = 0
        slot.num_tokens = slot.num_reserved = slot.num_committed
        if not slot.num_tokens:
            self._to_discard.add(index)
        self._touch(slot)

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots, with their owners and contents."""
        slots = self._slots
        slots[first], slots[second] = slots[second], slots[first]
        for index in (first, second):
            if (owner := slots[index].owner) is not None:
                self._index_of[owner] = index

    def _slot_of(self, sequence: SequenceView) -> Slot:
        return self._slots[self._index_of[sequence]]

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _may_hold(self, more: int) -> bool:
        """Return whether owners may have ``more`` tokens once all unowned ones are evicted."""
        return self.num_owned + more <= self.capacity_tokens

    def _assign(self, sequence: SequenceView, index: int, num_cached: int, num_tokens: int) -> None:
        slot = self._slots[index]
        slot.ids[:num_cached] = sequence.tokens(0, num_cached)
        slot.owner, slot.scope = sequence, sequence.scope
        slot.parts = prefix.parts_of(sequence)
        slot.num_tokens = slot.num_committed = num_cached
        slot.num_reserved = num_tokens
        self._index_of[sequence] = index
        self._touch(slot)

    def _evict_down_to_capacity(self) -> None:
        """Evict unowned tokens, least recently used first, until everything fits.

        The source of an admission's copy may be evicted, too: the copy happens before its memory is
        freed.
        """
        over = self.num_tokens - self.capacity_tokens
        unowned = [
            i for i, slot in enumerate(self._slots) if slot.owner is None and slot.num_tokens
        ]
        for index in sorted(unowned, key=lambda i: self._slots[i].last_used):
            if over <= 0:
                return
            slot = self._slots[index]
            over -= slot.num_reserved
            slot.num_tokens = slot.num_committed = slot.num_reserved = 0
            if self._events is not None:
                self._events.clear(slot)
            self._to_discard.add(index)
