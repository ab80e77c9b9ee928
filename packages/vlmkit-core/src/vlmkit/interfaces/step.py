"""One step of the loop: which tokens of which sequences run together, and what comes of them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import msgspec

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sequence import Sequence


class WorkItem(msgspec.Struct, frozen=True):
    """The next ``num_tokens`` tokens of one sequence, from position ``start`` on, to be computed.

    One is made for nearly every token, in a fraction of a dataclass's time; another one with other
    values by ``msgspec.structs.replace``.

    Attributes:
        sequence: whose tokens; an engine reads no more of it than :class:`SequenceView` says.
        start: position of the first.
        num_tokens: how many, drafts included.
        num_rows: how many of the last tokens get a row of the output each.
        drafts: guesses of the tokens that follow the sequence's own; the last of ``num_tokens``.
        output: what the rows are: unnormalised logits, or the last layer's hidden states.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_rows: int = 0
    drafts: tuple[int, ...] = ()
    output: Literal["logits", "hidden"] = "logits"

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + self.num_tokens

    @property
    def token_ids(self) -> Seq[int]:
        """The tokens to compute: the sequence's own, then the drafts."""
        own = self.sequence.tokens(self.start, self.stop - len(self.drafts))
        return (*own, *self.drafts) if self.drafts else own


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The rows of a step, in the order of its items, and within an item of its tokens.

    Attributes:
        logits: ``[rows, vocab]`` float, unnormalised, for items that want logits; None if none do.
        hidden: ``[rows, hidden]`` float, for items that want hidden states; None if none do.
    """

    logits: Array | None = None
    hidden: Array | None = None


@dataclass(frozen=True, slots=True)
class EncodeItem:
    """One medium whose features the engine will need, by its sequence and its slot's index."""

    sequence: Sequence
    index: int


@dataclass(frozen=True, slots=True)
class Step:
    """What runs now: tokens to compute, and media to encode for what comes next.

    Attributes:
        encodes: media whose tokens are about to enter the cache for the first time. They are
            encoded beside the loop; those whose features are kept are there at once.
        items: at most one for each sequence. One that touches a medium which is still being encoded
            does not run in this step: it is left out of the commit, and planned again. In the
            commit an item is as long as its tokens stand: without drafts that were not accepted.
        preempted: sequences whose cache was given up to make room; they wait again.
    """

    encodes: tuple[EncodeItem, ...]
    items: tuple[WorkItem, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(item.num_tokens for item in self.items)
