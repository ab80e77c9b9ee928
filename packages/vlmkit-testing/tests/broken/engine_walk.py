"""Engines that are wrong after an unusual order of steps, or after a step that fails."""

from collections.abc import Sequence as Seq
from contextlib import suppress

from honest.engine import AttentionEngine, Floats

from broken.broken import Broken
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool


class LeavesFoundBlocksFree(AttentionEngine):
    """Uses a cached block, but leaves it among those that others may take."""

    class Pool(BlockPool):
        def _use(self, block: int) -> None:
            self._num_users[block] += 1


class ForgetsDraftsOfOthers(AttentionEngine):
    """Frees the reserved blocks of all sequences when drafts of one are refused."""

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        super().truncate(sequence, num_tokens)
        for other, table in self.pool._tables.items():
            if other is not sequence and len(table.blocks) * self.pool.block_tokens > len(other):
                self.pool._drop(table.blocks.pop())


class KeepsRoomOfAFailedStep(AttentionEngine):
    """Releases no sequence whose step has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        try:
            return super().forward(items)
        except Exception:
            self.failed |= {item.sequence.id for item in items}
            raise

    def release(self, sequence: SequenceView) -> None:
        if sequence.id not in self.failed:
            super().release(sequence)


class ShowsTheImageOfAFailedStep(AttentionEngine):
    """Collects the features of a step, and forgets them only when the step succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Floats] = {}

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        self.seen.clear()
        return output

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        rows = self.seen.setdefault(index, item.sequence.features[index].embeddings)
        return rows[first : first + num_rows]


class PublishesAFailedStep(AttentionEngine):
    """Commits the tokens of a sequence when it is released."""

    def release(self, sequence: SequenceView) -> None:
        with suppress(IndexError):
            self.pool.commit(sequence, len(sequence))
        super().release(sequence)


class ReservesInSilence(AttentionEngine):
    """Does not report the cached blocks that a reservation takes."""

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        listener, self.pool.listener = self.pool.listener, None
        is_granted = super().reserve(sequence, num_tokens)
        self.pool.listener = listener
        return is_granted


WALK = (
    Broken(
        ReservesInSilence,
        "A block that is removed is reported, whatever takes its room.",
        "random_steps_agree_with_sequences_that_run_alone",
    ),
    Broken(
        LeavesFoundBlocksFree,
        "A cached block that a sequence uses is not overwritten.",
        "random_steps_agree_with_sequences_that_run_alone",
    ),
    Broken(
        ForgetsDraftsOfOthers,
        "truncate() frees blocks of its own sequence alone.",
        "random_steps_agree_with_sequences_that_run_alone",
        raises=(IndexError,),
    ),
    Broken(
        KeepsRoomOfAFailedStep,
        "A release frees the room of a sequence, whether its steps succeeded or not.",
        "a_step_that_fails_leaves_nothing_behind",
    ),
    Broken(
        ShowsTheImageOfAFailedStep,
        "A sequence gets the features of its own media.",
        "a_step_that_fails_leaves_nothing_behind",
        raises=(ValueError,),
    ),
    Broken(
        PublishesAFailedStep,
        "Only committed tokens are found.",
        "a_step_that_fails_leaves_nothing_behind",
    ),
)
