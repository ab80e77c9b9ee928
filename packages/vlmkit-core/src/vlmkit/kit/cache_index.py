"""An index of cached prefixes, built from cache events.

It tells a router or a monitor how much of a prompt an engine has cached, without asking the engine.
"""

from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.view import SequenceView


class CacheIndex:
    """The blocks that an engine's cache holds.

    Attributes:
        blocks: the blocks, by their keys; must not be modified.
    """

    def __init__(self) -> None:
        self.blocks: dict[bytes, CacheBlock] = {}
        self._children: dict[bytes, dict[bytes, CacheBlock]] = {}

    def apply(self, change: CacheChange) -> None:
        """Apply a change; unknown removed keys have no effect."""
        if change.is_cleared:
            self.blocks.clear()
            self._children.clear()
        for key in change.removed:
            if (block := self.blocks.pop(key, None)) is not None:
                siblings = self._children[block.parent]
                del siblings[key]
                if not siblings:
                    del self._children[block.parent]
        for block in change.stored:
            self.blocks[block.key] = block
            self._children.setdefault(block.parent, {})[block.key] = block

    def num_cached(self, sequence: SequenceView) -> int:
        """Return how many first tokens of a sequence whole blocks hold.

        An engine may reuse fewer: it computes the token whose row is requested, and cuts no atomic
        span.
        """
        return sum(len(block.tokens) for block in self.prefix(sequence))

    def prefix(self, sequence: SequenceView) -> list[CacheBlock]:
        """Return the blocks that hold a sequence's longest prefix, in order."""
        longest: list[CacheBlock] = []
        open_paths: list[list[CacheBlock]] = [[]]
        while open_paths:
            path = open_paths.pop()
            if len(path) > len(longest):
                longest = path
            start = sum(len(block.tokens) for block in path)
            parent = path[-1].key if path else b""
            children = self._children.get(parent, {}).values()
            open_paths += [[*path, each] for each in children if _holds(each, sequence, start)]
        return longest


def _holds(block: CacheBlock, sequence: SequenceView, start: int) -> bool:
    """Return whether a block holds the tokens and media of a sequence from ``start`` on."""
    stop = start + len(block.tokens)
    if block.scope != sequence.scope or block.tokens != tuple(sequence.tokens(start, stop)):
        return False
    return block.media == media_within(sequence, start, stop)


def media_within(sequence: SequenceView, start: int, stop: int) -> tuple[bytes, ...]:
    """Return the digests of the media that overlap tokens ``[start, stop)``, in order."""
    return tuple(
        slot.digest for slot in sequence.prompt.media if slot.start < stop and slot.stop > start
    )
