"""One step of the loop: which tokens of which sequences run together."""

from dataclasses import dataclass
from typing import NamedTuple

from vlmkit.sequence import Sequence


@dataclass(frozen=True, slots=True)
class WorkItem:
    """The next ``num_tokens`` tokens of one sequence, from position ``start`` on, to be computed.

    ``wants_logits`` asks for one row of logits: that of the item's last token.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    wants_logits: bool

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + self.num_tokens


class EncodeItem(NamedTuple):
    """One image whose features the engine will need."""

    sequence: Sequence
    image: int


@dataclass(frozen=True, slots=True)
class Step:
    """What runs now: tokens to compute, and images to encode for what comes next.

    Attributes:
        encodes: images whose tokens are about to enter the cache for the first time. They are
            encoded beside the loop; those whose features are kept are there at once.
        items: at most one for each sequence. One that touches an image which is still being encoded
            does not run in this step: it is left out of the commit, and planned again.
        preempted: sequences whose cache was given up to make room; they wait again.
    """

    encodes: tuple[EncodeItem, ...]
    items: tuple[WorkItem, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(item.num_tokens for item in self.items)
