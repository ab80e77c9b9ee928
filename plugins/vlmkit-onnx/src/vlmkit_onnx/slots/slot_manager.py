"""Who has which slot, what every slot holds, and which of it a newcomer can start from.

Pure bookkeeping: no arrays of the model, no ONNX Runtime. A slot keeps the tokens of a sequence
that left, until its place or its memory is needed, so that a later prompt that begins alike starts
from them. Two prompts begin alike as far as their token ids, their images' digests, the spans that
see each other both ways and their scope are equal; nothing is hashed, everything is compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import prefix


class Seat(NamedTuple):
    """A sequence got a slot.

    Attributes:
        slot: which.
        num_cached: how many of its first tokens the slot holds, once they were copied.
        source: the slot to copy them from; None where they are there already, or none are.
        is_fresh: the slot held something, which is of no use any more.
    """

    slot: int
    num_cached: int
    source: int | None
    is_fresh: bool


@dataclass(slots=True)
class _Place:
    """One slot.

    Attributes:
        ids: ``[slot tokens]``, valid up to ``num_committed``.
        num_tokens: whose keys and values are there.
        num_committed: how many of those are the owner's for good, for others to start from.
        num_reserved: that its owner has room for; the tokens themselves where it has no owner.
        last_used: larger is more recent.
    """

    ids: NDArray[np.int32]
    owner: SequenceView | None = None
    scope: bytes = b""
    parts: prefix.Parts = ((), ())
    num_tokens: int = 0
    num_committed: int = 0
    num_reserved: int = 0
    last_used: int = 0


class SlotBook:
    """Keeps the books of the slots.

    Args:
        num_slots: how many there are.
        slot_tokens: longest sequence that one takes.
        capacity_tokens: that all slots together may hold.
        shares_prefixes: whether what a slot holds may be used by others.
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
        self._places = [_Place(np.zeros(slot_tokens, np.int32)) for _ in range(num_slots)]
        self._slots: dict[SequenceView, int] = {}
        self._clock = 0
        self._to_discard: set[int] = set()

    @property
    def num_sequences(self) -> int:
        """Sequences that have a slot."""
        return len(self._slots)

    @property
    def num_tokens(self) -> int:
        """Tokens that take memory: reserved by owners, or kept for later."""
        return sum(place.num_reserved for place in self._places)

    @property
    def num_owned(self) -> int:
        """Tokens that admitted sequences have room for."""
        return sum(place.num_reserved for place in self._places if place.owner is not None)

    def slot(self, sequence: SequenceView) -> int:
        """Return the slot of an admitted sequence."""
        return self._slots[sequence]

    def num_held(self, slot: int) -> int:
        """Return how many tokens' keys and values a slot holds."""
        return self._places[slot].num_tokens

    def is_owned(self, slot: int) -> bool:
        """Tell whether a sequence has this slot."""
        return self._places[slot].owner is not None

    def take_discarded(self) -> list[int]:
        """Return the slots whose memory can be given back, once."""
        slots = [slot for slot in self._to_discard if not self._places[slot].num_tokens]
        self._to_discard.clear()
        return slots

    def admit(self, sequence: SequenceView) -> Seat | None:
        """Give a sequence a slot and room for its tokens and one more; None if there is none.

        Raises:
            ValueError: it has a slot already.
        """
        if sequence in self._slots:
            raise ValueError(f"sequence {sequence.id!r} is admitted already")
        num_tokens = len(sequence) + 1
        if num_tokens > len(self._places[0].ids) or not self._may_hold(num_tokens):
            return None
        free = [i for i, place in enumerate(self._places) if place.owner is None]
        if not free:
            return None
        source, num_cached = self._longest_prefix(sequence, free)
        target = self._target(free, source, num_cached)
        copied_from = None if source == target else source
        held = self._places[target].num_tokens > 0
        is_fresh = held and (num_cached == 0 or copied_from is not None)
        self._seat(sequence, target, num_cached, num_tokens)
        self._evict_down_to_capacity()
        return Seat(target, num_cached, copied_from, is_fresh)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        place = self._place(sequence)
        more = num_tokens - place.num_reserved
        if more <= 0:
            return True
        if num_tokens > len(place.ids) or not self._may_hold(more):
            return False
        place.num_reserved = num_tokens
        self._evict_down_to_capacity()
        return True

    def note_computed(self, sequence: SequenceView, num_tokens: int) -> None:
        """Note that a slot now holds so many tokens of its owner, and no more."""
        place = self._place(sequence)
        place.num_tokens = num_tokens
        self._touch(place)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let others find the first ``num_tokens`` of an admitted sequence, which are its own."""
        place = self._place(sequence)
        start = place.num_committed
        place.ids[start:num_tokens] = sequence.tokens(start, num_tokens)
        place.num_committed = num_tokens

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget what follows the first ``num_tokens`` of an admitted sequence.

        Raises:
            ValueError: that was committed.
        """
        place = self._place(sequence)
        if num_tokens < place.num_committed:
            raise ValueError(f"sequence {sequence.id!r} has more committed than {num_tokens}")
        place.num_tokens = min(place.num_tokens, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Take a sequence's slot; what it holds is kept for later prompts if it may be shared."""
        slot = self._slots.pop(sequence)
        place = self._places[slot]
        place.owner = None
        if not self._shares:
            place.num_committed = 0
        place.num_tokens = place.num_reserved = place.num_committed
        if not place.num_tokens:
            self._to_discard.add(slot)
        self._touch(place)

    def swap(self, first: int, second: int) -> None:
        """Let two slots change places, with their owners and everything that they hold."""
        places = self._places
        places[first], places[second] = places[second], places[first]
        for slot in (first, second):
            if (owner := places[slot].owner) is not None:
                self._slots[owner] = slot

    def _place(self, sequence: SequenceView) -> _Place:
        return self._places[self._slots[sequence]]

    def _touch(self, place: _Place) -> None:
        self._clock += 1
        place.last_used = self._clock

    def _may_hold(self, more: int) -> bool:
        """Tell whether owners may have so many more tokens, if all that is kept goes."""
        return self.num_owned + more <= self.capacity_tokens

    def _longest_prefix(
        self, sequence: SequenceView, free: Iterable[int]
    ) -> tuple[int | None, int]:
        """Return the slot that shares the longest prefix with a sequence, and how long it is."""
        if not self._shares:
            return None, 0
        ids = np.array(sequence.tokens(0, sequence.first_row), np.int32)
        parts = prefix.parts_of(sequence)
        best, longest = None, 0
        for slot in range(len(self._places)) if self._copies else free:
            place = self._places[slot]
            if place.scope != sequence.scope or place.num_committed <= longest:
                continue
            num_equal = prefix.whole(sequence, _num_equal(place, ids, parts))
            if num_equal > longest:
                best, longest = slot, num_equal
        return best, longest

    def _target(self, free: list[int], source: int | None, num_cached: int) -> int:
        """Choose the slot: where the prefix is, if little else is lost, or the least useful."""
        if source in free and (not self._copies or len(free) == 1):
            return source
        if source in free and 2 * num_cached >= self._places[source].num_tokens:
            return source
        others = [slot for slot in free if slot != source]
        kept = [slot for slot in others if self._places[slot].num_tokens]
        empty = [slot for slot in others if not self._places[slot].num_tokens]
        if empty:
            return empty[0]
        return min(kept, key=lambda slot: self._places[slot].last_used)

    def _seat(self, sequence: SequenceView, slot: int, num_cached: int, num_tokens: int) -> None:
        place = self._places[slot]
        place.ids[:num_cached] = sequence.tokens(0, num_cached)
        place.owner, place.scope = sequence, sequence.scope
        place.parts = prefix.parts_of(sequence)
        place.num_tokens = place.num_committed = num_cached
        place.num_reserved = num_tokens
        self._slots[sequence] = slot
        self._touch(place)

    def _evict_down_to_capacity(self) -> None:
        """Forget what nobody owns, oldest first, until everything fits.

        What an admission copies from may go, too: the copy is made before the memory is given back.
        """
        over = self.num_tokens - self.capacity_tokens
        unowned = [i for i, p in enumerate(self._places) if p.owner is None and p.num_tokens]
        for slot in sorted(unowned, key=lambda i: self._places[i].last_used):
            if over <= 0:
                return
            place = self._places[slot]
            over -= place.num_reserved
            place.num_tokens = place.num_committed = place.num_reserved = 0
            self._to_discard.add(slot)


def _num_equal(place: _Place, ids: NDArray[np.int32], parts: prefix.Parts) -> int:
    """Return how many first tokens of a slot are those of a prompt, images and spans included."""
    num = min(place.num_committed, len(ids))
    differs = np.flatnonzero(place.ids[:num] != ids[:num])
    num = int(differs[0]) if len(differs) else num
    return prefix.num_before_unlike(num, place.parts, parts)
