"""A cache without an engine, which tracks every token of its capacity."""

from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool


class StrictCache:
    """A :class:`vlmkit.interfaces.engine.Cache` without content that tracks its capacity.

    Attributes:
        reserved: tokens that each admitted sequence has room for.
        computed: tokens of each that are there.
        first_found: tokens of each that were there when it was first admitted.
        released: sequences that gave their room up since the present plan began.
        is_planning: whether a scheduler plans, to which tokens are not the cache's to change.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        block_tokens = max(1, limits.prefix_block_tokens)
        self.pool = BlockPool(
            limits.capacity_tokens // block_tokens,
            block_tokens,
            shares_prefixes=limits.prefix_block_tokens > 0,
        )
        self.reserved: dict[SequenceView, int] = {}
        self.computed: dict[SequenceView, int] = {}
        self.first_found: dict[SequenceView, int] = {}
        self.released: list[SequenceView] = []
        self.is_planning = False

    @property
    def limits(self) -> EngineLimits:
        """The limits as given."""
        return self._limits

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Reserve all present tokens and one more."""
        if len(self.reserved) == self._limits.max_sequences:
            return None
        if (admission := self.pool.admit(sequence)) is None:
            return None
        self.reserved[sequence] = len(sequence) + 1
        self.computed[sequence] = admission.num_cached
        self.first_found.setdefault(sequence, admission.num_cached)
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Reserve the first ``num_tokens``."""
        if not self.pool.reserve(sequence, num_tokens):
            return False
        self.reserved[sequence] = max(num_tokens, self.reserved[sequence])
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Share the first ``num_tokens``."""
        assert not self.is_planning, "a scheduler does not commit tokens: the loop does"
        assert num_tokens <= min(len(sequence), self.computed[sequence]), "too much is committed"
        self.pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop everything after the first ``num_tokens``."""
        assert not self.is_planning, "a scheduler does not truncate: the loop does"
        self.pool.truncate(sequence, num_tokens)
        self.computed[sequence] = self.reserved[sequence] = num_tokens

    def release(self, sequence: SequenceView) -> None:
        """Free a sequence's capacity."""
        self.pool.release(sequence)
        del self.reserved[sequence], self.computed[sequence]
        self.released.append(sequence)

    def compute(self, item: WorkItem) -> None:
        """Record that an item's tokens are in the cache."""
        self.computed[item.sequence] = item.stop
