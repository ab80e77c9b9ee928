"""One step of the loop: which tokens of which sequences run together."""

from dataclasses import dataclass
from typing import NamedTuple

from vlmkit.sequence import Sequence


class WorkItem(NamedTuple):
    """Tokens ``[start, start + count)`` of one sequence, to be computed in this step.

    ``wants_logits`` asks for one row of logits: that of the item's last token.
    """

    sequence: Sequence
    start: int
    count: int
    wants_logits: bool

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + self.count


class EncodeItem(NamedTuple):
    """One image whose features the engine needs in this step."""

    sequence: Sequence
    image: int


@dataclass(frozen=True, slots=True)
class Step:
    """What runs now: images to encode, then tokens to compute.

    Attributes:
        encodes: images whose tokens enter the cache in this step for the first time.
        items: at most one for each sequence.
        preempted: sequences whose cache was given up to make room; they wait again.
    """

    encodes: tuple[EncodeItem, ...]
    items: tuple[WorkItem, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(item.count for item in self.items)
