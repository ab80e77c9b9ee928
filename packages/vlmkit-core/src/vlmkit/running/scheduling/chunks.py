"""Where a chunk of a prompt may end, and what its media ask for. Knows no budget and no queue."""

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.sequence import Sequence


def latest_stop(sequence: Sequence, start: int, longest: int, limits: EngineLimits) -> int:
    """Return where a chunk ends: with the last wanted row, or with as many as an item may have."""
    rows = sequence.rows
    most_rows = longest if sequence.task == "embed" else limits.max_item_rows
    return min(rows.stop, start + longest, max(start, rows.start) + most_rows)


def uncut(sequence: Sequence, start: int, stop: int, *, may_grow: bool = True) -> int:
    """Move the end of a chunk out of any atomic span: before it, or else past it."""
    for span in sequence.plan.spans:
        if span.start < stop < span.stop:
            return span.start if span.start > start or not may_grow else span.stop
    return stop


def media_to_encode(sequence: Sequence, start: int, stop: int) -> list[int]:
    """Return the slots that a chunk touches and whose features are not there yet, by index."""
    return [
        index
        for index, slot in enumerate(sequence.prompt.media)
        if slot.start < stop and slot.stop > start and index not in sequence.features
    ]


def is_encoding(sequence: Sequence, start: int, stop: int) -> bool:
    """Tell whether a chunk touches a medium that is being encoded."""
    slots = (sequence.prompt.media[index] for index in sequence.encoding)
    return any(slot.start < stop and slot.stop > start for slot in slots)
