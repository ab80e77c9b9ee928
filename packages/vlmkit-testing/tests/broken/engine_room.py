"""Engines that count their room wrong, or are smaller than they say."""

import threading

import numpy as np
from honest.engine import AttentionEngine, Floats

from broken.broken import Broken
from broken.engine_numbers import claiming
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView


class AdmitsMoreThanItClaims(AttentionEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return self.pool.admit(sequence)


class LosesWhatWasReserved(AttentionEngine):
    """Gives back what an admission took, and not what was reserved since."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[int] = []

    def release(self, sequence: SequenceView) -> None:
        first = len(self.pool.blocks(sequence))
        super().release(sequence)
        if first > 2:
            self.lost += [self.pool._take() for _ in range(first - 2)]


class HasFewerPlacesThanItClaims(AttentionEngine):
    limits = claiming(max_sequences=9)

    def admit(self, sequence: SequenceView) -> Admission | None:
        return super().admit(sequence) if self.pool.num_sequences < 6 else None


class PutsTwoIntoOnePlace(AttentionEngine):
    """Has a table of places for four."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        tables = list(self.pool._tables.values())
        if admission and len(tables) > 4:
            tables[-1].blocks = list(tables[len(tables) % 4].blocks)
        return admission


class RefusesAtTheCostOfOthers(AttentionEngine):
    """Takes the oldest one's first block before it finds out that this is not enough."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is None:
            oldest = next(iter(self.pool._tables.values()))
            self.cells[:, oldest.blocks[0] * self.pool.block_tokens] = 0.0
        return admission


class AdmitsWithoutOneMore(AttentionEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            self.pool.truncate(sequence, len(sequence))
        return admission


class ReleasesAnother(AttentionEngine):
    def release(self, sequence: SequenceView) -> None:
        tables = self.pool._tables
        newest = list(tables)[-1]
        tables[newest], tables[sequence] = tables[sequence], tables[newest]
        super().release(sequence)


class TakesTheReturnedForKnown(AttentionEngine):
    """Believes that the cells of one who left are its cells when it comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[SequenceView] = set()

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission and sequence in self.known:
            size = self.pool.block_tokens
            return Admission(sequence.first_row // size * size)
        self.known.add(sequence)
        return admission

    def release(self, sequence: SequenceView) -> None:
        places = [block * self.pool.block_tokens for block in self.pool.blocks(sequence)]
        super().release(sequence)
        self.cells[:, places] = 0.0


class TakesWhatThereIs(AttentionEngine):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        if super().reserve(sequence, num_tokens):
            return True
        size, blocks = self.pool.block_tokens, self.pool.blocks(sequence)
        super().reserve(sequence, (len(blocks) + self.pool.num_free_blocks) * size)
        return False


class ReservesExactly(AttentionEngine):
    """Takes a reservation for all that a sequence needs."""

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        if num_tokens < len(sequence):
            self.pool.truncate(sequence, num_tokens)
        return super().reserve(sequence, num_tokens)


class ComputesShortChunks(AttentionEngine):
    """Has buffers for sixteen tokens, and begins them anew."""

    def positions(self, item: WorkItem) -> Floats:
        return item.start + np.arange(item.num_tokens) % 16


class KnowsFewerPositions(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.weights.positions = self.weights.positions[:64]


class AnswersWithinAWindow(AttentionEngine):
    """Sees the last tokens only, where it computes one."""

    def unseen(self, item: WorkItem) -> Floats:
        masked = super().unseen(item)
        if item.num_tokens == 1:
            masked = masked | (np.arange(item.stop) < item.stop - 80)
        return masked


class ClaimsMoreThanItHolds(AttentionEngine):
    limits = claiming(capacity_tokens=1024)


class CountsWhatWasNeverUsed(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    @property
    def num_free_tokens(self) -> int:
        for sequence in self.pool._tables:
            self.used.update(self.pool.blocks(sequence))
        return (self.pool.num_blocks - len(self.used)) * self.pool.block_tokens


class CountsSharedAsFree(AttentionEngine):
    """Counts what others can find as room, though its owner is there."""

    @property
    def num_free_tokens(self) -> int:
        return super().num_free_tokens + len(self.pool._key_of) * self.pool.block_tokens


class CountsInOneThread(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    @property
    def num_free_tokens(self) -> int:
        assert threading.get_ident() == self.thread
        return super().num_free_tokens


ROOM = (
    Broken(
        AdmitsMoreThanItClaims,
        "At most max_sequences are admitted at once.",
        "all_room_comes_back",
    ),
    Broken(
        LosesWhatWasReserved,
        "A release gives up all room, also that which was reserved.",
        "all_room_comes_back",
    ),
    Broken(
        HasFewerPlacesThanItClaims,
        "max_sequences are admitted where there is room.",
        "all_admitted_sequences_run_together",
    ),
    Broken(
        PutsTwoIntoOnePlace,
        "Each admitted sequence has room of its own.",
        "all_admitted_sequences_run_together",
    ),
    Broken(
        RefusesAtTheCostOfOthers,
        "A refused admission changes nothing.",
        "a_full_engine_still_runs_what_it_admitted",
    ),
    Broken(
        AdmitsWithoutOneMore,
        "admit() makes room for all present tokens and one more.",
        "an_admitted_sequence_has_room_for_one_more_token",
    ),
    Broken(
        ReleasesAnother,
        "release() gives up the room of its sequence.",
        "releasing_one_leaves_the_others_alone",
    ),
    Broken(
        TakesTheReturnedForKnown,
        "release() gives up the state of its sequence.",
        "a_preempted_sequence_goes_on_where_it_was",
    ),
    Broken(
        TakesWhatThereIs,
        "A refused reservation changes nothing.",
        "room_beyond_the_capacity_is_refused",
    ),
    Broken(
        ReservesExactly,
        "reserve() takes nothing away.",
        "reserving_reserved_tokens_changes_nothing",
        raises=(IndexError,),
    ),
    Broken(
        ComputesShortChunks,
        "A work item may have max_chunk_tokens.",
        "the_longest_chunk_is_computed_as_shorter_ones",
    ),
    Broken(
        KnowsFewerPositions,
        "A sequence may have max_sequence_tokens.",
        "a_sequence_grows_to_the_longest_that_is_claimed",
        raises=(IndexError,),
    ),
    Broken(
        AnswersWithinAWindow,
        "A long sequence is computed as a short one.",
        "a_sequence_grows_to_the_longest_that_is_claimed",
    ),
    Broken(
        ClaimsMoreThanItHolds,
        "The cache holds capacity_tokens.",
        "the_cache_holds_what_is_claimed",
    ),
    Broken(
        CountsWhatWasNeverUsed,
        "What no admitted sequence has is free, though it is kept for later.",
        "free_room_is_counted",
    ),
    Broken(
        CountsSharedAsFree,
        "What an admitted sequence has is not free, though it is shared.",
        "free_room_is_counted",
    ),
    Broken(
        CountsInOneThread,
        "num_free_tokens is asked for from any thread.",
        "free_room_is_counted",
    ),
)
