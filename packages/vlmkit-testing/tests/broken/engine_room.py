"""Engines that miscount their cache room, or have less than they state."""

import threading
from collections.abc import Sequence as Seq

import numpy as np
from honest.engine import AttentionEngine, Floats

from broken.broken import Broken
from broken.engine_numbers import claiming
from broken.engine_subjects import OnRoomyMock
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings


class AdmitsMoreThanItClaims(AttentionEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return self.pool.admit(sequence)


class LosesReservedBlocks(AttentionEngine):
    """Frees the blocks of the admission, but not those reserved later."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[int] = []

    def release(self, sequence: SequenceView) -> None:
        first = len(self.pool.blocks(sequence))
        super().release(sequence)
        if first > 2:
            self.lost += [self.pool._take() for _ in range(first - 2)]


class HasFewerSlotsThanItClaims(AttentionEngine):
    limits = claiming(max_sequences=9)

    def admit(self, sequence: SequenceView) -> Admission | None:
        return super().admit(sequence) if self.pool.num_sequences < 6 else None


class PutsTwoSequencesIntoOneSlot(AttentionEngine):
    """Has slots for four sequences."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        tables = list(self.pool._tables.values())
        if admission and len(tables) > 4:
            tables[-1].blocks = list(tables[len(tables) % 4].blocks)
        return admission


class DamagesOthersWhenItRefuses(AttentionEngine):
    """Clears a block of the oldest sequence before it refuses."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is None:
            oldest = next(iter(self.pool._tables.values()))
            self.cells[:, oldest.blocks[0] * self.pool.block_tokens] = 0.0
        return admission


class AdmitsWithoutRoomForANewToken(AttentionEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            self.pool.truncate(sequence, len(sequence))
        return admission


class ReleasesAnotherSequence(AttentionEngine):
    def release(self, sequence: SequenceView) -> None:
        tables = self.pool._tables
        newest = list(tables)[-1]
        tables[newest], tables[sequence] = tables[sequence], tables[newest]
        super().release(sequence)


class TrustsCellsOfAReleasedSequence(AttentionEngine):
    """Reuses the cells of a released sequence when it is admitted again."""

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
        cell_ids = [block * self.pool.block_tokens for block in self.pool.blocks(sequence)]
        super().release(sequence)
        self.cells[:, cell_ids] = 0.0


class TakesBlocksOfARefusedReservation(AttentionEngine):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        if super().reserve(sequence, num_tokens):
            return True
        size, blocks = self.pool.block_tokens, self.pool.blocks(sequence)
        super().reserve(sequence, (len(blocks) + self.pool.num_free_blocks) * size)
        return False


class TakesBlocksThatDoNotSuffice(TakesBlocksOfARefusedReservation):
    """Refuses at once what no sequence may have."""

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        if num_tokens > self.limits.max_sequence_tokens:
            return False
        return super().reserve(sequence, num_tokens)


class KeepsBlocksOfAPartOfAReservation(MockEngine):
    class Pool(BlockPool):
        def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
            blocks = self.blocks(sequence)
            while len(blocks) * self.block_tokens < num_tokens and self.num_free_blocks:
                blocks.append(self._take())
            return len(blocks) * self.block_tokens >= num_tokens

    def __init__(self, settings: MockEngineSettings | None = None) -> None:
        super().__init__(settings)
        self._pool.__class__ = self.Pool


class RotatesLongSteps(AttentionEngine):
    """Computes in batches of four, and puts the last one first."""

    limits = claiming(max_sequences=10)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        if len(items) <= 4 or output.logits is None:
            return output
        return StepOutput(np.roll(np.asarray(output.logits), 4, axis=0))


class ShrinksReservations(AttentionEngine):
    """Treats a reservation as the total that a sequence needs."""

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        if num_tokens < len(sequence):
            self.pool.truncate(sequence, num_tokens)
        return super().reserve(sequence, num_tokens)


class ComputesShortChunks(AttentionEngine):
    """Has buffers for sixteen tokens, and restarts positions there."""

    def positions(self, item: WorkItem) -> Floats:
        return item.start + np.arange(item.num_tokens) % 16


class HasTooFewPositions(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.weights.positions = self.weights.positions[:64]


class AnswersWithinAWindow(AttentionEngine):
    """Attends only to the last tokens when it decodes."""

    def unseen(self, item: WorkItem) -> Floats:
        masked = super().unseen(item)
        if item.num_tokens == 1:
            masked = masked | (np.arange(item.stop) < item.stop - 80)
        return masked


class ClaimsMoreThanItHolds(AttentionEngine):
    limits = claiming(capacity_tokens=1024)


class CountsOnlyUnusedBlocks(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    @property
    def num_free_tokens(self) -> int:
        for sequence in self.pool._tables:
            self.used.update(self.pool.blocks(sequence))
        return (self.pool.num_blocks - len(self.used)) * self.pool.block_tokens


class CountsSharedBlocksAsFree(AttentionEngine):
    """Counts shareable blocks as free although their sequence is admitted."""

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


class CountsSharedBlocksForEach(AttentionEngine):
    """Subtracts the tokens of every admitted sequence."""

    @property
    def num_free_tokens(self) -> int:
        tables = self.pool._tables.values()
        num_blocks = sum(len(table.blocks) for table in tables)
        return max(0, self.limits.capacity_tokens - num_blocks * self.pool.block_tokens)


class CountsWhatWasFoundAsFree(AttentionEngine):
    """Subtracts of each sequence only what was not cached when it was admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[SequenceView, int] = {}

    @property
    def num_free_tokens(self) -> int:
        taken = [
            len(table.blocks) * self.pool.block_tokens - self.cached[sequence]
            for sequence, table in self.pool._tables.items()
        ]
        return self.limits.capacity_tokens - sum(taken)

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            self.cached[sequence] = admission.num_cached
        return admission


class RefusesWhatSharesItsRoom(AttentionEngine):
    """Requires room for the whole sequence, also where most of it is shared."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        return super().admit(sequence) if len(sequence) < self.num_free_tokens else None


ROOM = (
    Broken(
        AdmitsMoreThanItClaims,
        "At most max_sequences are admitted at once.",
        "all_room_comes_back",
    ),
    Broken(
        LosesReservedBlocks,
        "A release frees all blocks, reserved ones included.",
        "all_room_comes_back",
    ),
    Broken(
        HasFewerSlotsThanItClaims,
        "max_sequences are admitted if there is room.",
        "all_admitted_sequences_run_together",
    ),
    Broken(
        PutsTwoSequencesIntoOneSlot,
        "Each admitted sequence has its own room.",
        "all_admitted_sequences_run_together",
    ),
    Broken(
        DamagesOthersWhenItRefuses,
        "A refused admission changes nothing.",
        "a_full_engine_still_runs_what_it_admitted",
    ),
    Broken(
        AdmitsWithoutRoomForANewToken,
        "admit() reserves room for all present tokens and one more.",
        "an_admitted_sequence_has_room_for_one_more_token",
    ),
    Broken(
        ReleasesAnotherSequence,
        "release() frees the room of its own sequence.",
        "releasing_one_leaves_the_others_alone",
    ),
    Broken(
        TrustsCellsOfAReleasedSequence,
        "release() drops the state of its sequence.",
        "a_preempted_sequence_goes_on_where_it_was",
    ),
    Broken(
        TakesBlocksOfARefusedReservation,
        "A refused reservation changes nothing.",
        "room_beyond_the_capacity_is_refused",
    ),
    Broken(
        TakesBlocksThatDoNotSuffice,
        "A refused reservation takes no room, also if it is within the limits of a sequence.",
        "a_refused_reservation_takes_no_room",
    ),
    Broken(
        KeepsBlocksOfAPartOfAReservation,
        "A reservation that does not fit takes no part of the room that is left.",
        "a_refused_reservation_takes_no_room",
        honest=MockEngine,
        on=OnRoomyMock,
    ),
    Broken(
        RotatesLongSteps,
        "Rows have the order of the items, however many these are.",
        "all_admitted_sequences_run_together",
    ),
    Broken(
        ShrinksReservations,
        "reserve() never shrinks a reservation.",
        "reserving_reserved_tokens_changes_nothing",
        raises=(IndexError,),
    ),
    Broken(
        ComputesShortChunks,
        "A work item may have up to max_chunk_tokens.",
        "the_longest_chunk_is_computed_as_shorter_ones",
    ),
    Broken(
        HasTooFewPositions,
        "A sequence may have up to max_sequence_tokens.",
        "a_sequence_grows_to_the_longest_that_is_claimed",
        raises=(IndexError,),
    ),
    Broken(
        AnswersWithinAWindow,
        "A long sequence is computed like a short one.",
        "a_sequence_grows_to_the_longest_that_is_claimed",
    ),
    Broken(
        ClaimsMoreThanItHolds,
        "The cache holds capacity_tokens.",
        "the_cache_holds_what_is_claimed",
    ),
    Broken(
        CountsOnlyUnusedBlocks,
        "Blocks that no admitted sequence uses are free, cached ones included.",
        "free_room_is_counted",
    ),
    Broken(
        CountsSharedBlocksAsFree,
        "Blocks of admitted sequences are not free, shared ones included.",
        "free_room_is_counted",
    ),
    Broken(
        CountsInOneThread,
        "num_free_tokens may be read from any thread.",
        "free_room_is_counted",
    ),
    *(
        Broken(component, promise, "free_room_counts_shared_tokens_as_admit_takes_them")
        for component, promise in (
            (CountsSharedBlocksForEach, "Shared tokens count once."),
            (
                CountsWhatWasFoundAsFree,
                "Tokens stay allocated when the sequence ends from which they were shared.",
            ),
            (
                RefusesWhatSharesItsRoom,
                "A sequence is refused only if num_free_tokens do not suffice.",
            ),
        )
    ),
)
