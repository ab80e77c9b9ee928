"""One step of the engine loop: the tokens that run together, and their output.

Values only: the scheduler plans a step, and the engine computes it.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import msgspec

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sequence import Sequence


class WorkItem(msgspec.Struct, frozen=True):
    """The next tokens of one sequence to compute, from position ``start`` on.

    A struct, because one is created for nearly every token, in a fraction of a dataclass's time.
    Copy it with ``msgspec.structs.replace``.

    Attributes:
        sequence: the sequence; an engine reads only the attributes of :class:`SequenceView`.
        start: position of the first token.
        num_tokens: number of tokens, drafts included.
        num_rows: number of output rows, one for each of the last tokens.
        drafts: proposed tokens after the sequence's own; the last of the ``num_tokens``.
        output: the content of the rows: unnormalised logits, or hidden states of the last layer.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_rows: int = 0
    drafts: tuple[int, ...] = ()
    output: Literal["logits", "hidden"] = "logits"

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + self.num_tokens

    @property
    def token_ids(self) -> Seq[int]:
        """The tokens to compute: the sequence's own, then the drafts."""
        own = self.sequence.tokens(self.start, self.stop - len(self.drafts))
        return (*own, *self.drafts) if self.drafts else own


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output rows of a step, ordered by item, and within an item by token.

    Attributes:
        logits: ``[rows, vocab]`` float, unnormalised, of items that request logits; None if none.
        hidden: ``[rows, hidden]`` float, of items that request hidden states; None if none.
    """

    logits: Array | None = None
    hidden: Array | None = None


@dataclass(frozen=True, slots=True)
class EncodeItem:
    """One medium to encode, given by its sequence and the index of its slot."""

    sequence: Sequence
    index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step: tokens to compute now, and media to encode for later steps.

    Attributes:
        encodes: media whose tokens are about to enter the cache for the first time. They are
            encoded outside the loop, unless their features are cached.
        items: at most one for each sequence. An item that touches a medium still being encoded
            does not run: it is missing from the commit and must be planned again. In the commit,
            items lack rejected drafts.
        preempted: sequences whose cache was released to make room; they are queued again.
    """

    encodes: tuple[EncodeItem, ...]
    items: tuple[WorkItem, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the step computes."""
        return sum(item.num_tokens for item in self.items)
