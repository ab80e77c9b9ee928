"""Engines that keep released data, or work in one thread only."""

import threading
from collections.abc import Sequence as Seq
from typing import Any

from honest.engine import AttentionEngine, Floats
from msgspec import structs

from broken.broken import Broken
from broken.engine_subjects import OnMock
from vlmkit.interfaces.engine import NUM_RECOMPUTED, NUM_REPLAYED, Admission
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_mock.engine import MockEngine


class ReadsInOneThread(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def read(self, prompt: Prompt) -> PromptPlan:
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().read(prompt)


class RemembersOnlyTheLastPrompt(AttentionEngine):
    """Stores the data of a prompt in an attribute that the next prompt overwrites."""

    def read(self, prompt: Prompt) -> PromptPlan:
        self.num_prompt = len(prompt)
        return super().read(prompt)

    def positions(self, item: WorkItem) -> Floats:
        return super().positions(item) % self.num_prompt


class KeepsReleasedSequences(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def admit(self, sequence: SequenceView) -> Admission | None:
        self.kept.append(sequence)
        return super().admit(sequence)


class KeepsPrompts(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.read_before: dict[int, Prompt] = {}

    def read(self, prompt: Prompt) -> PromptPlan:
        self.read_before[len(self.read_before)] = prompt
        return super().read(prompt)


class KeepsFeatures(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.merged: dict[bytes, Any] = {}

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        self.merged[item.sequence.prompt.media[index].digest] = item.sequence.features[index]
        return super().image_rows(item, index, first, num_rows)


class KeepsTheLastStep(AttentionEngine):
    last: WorkItem | None = None

    def compute(self, item: WorkItem) -> Floats:
        self.last = structs.replace(item)
        return super().compute(item)


class KeepsRefusedSequences(AttentionEngine):
    refused: SequenceView | None = None

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        self.refused = sequence if admission is None else None
        return admission


class ClosesAllInstances(AttentionEngine):
    made: list[AttentionEngine] = []  # noqa: RUF012 - shared, which is what is broken

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def close(self) -> None:
        for each in self.made:
            each.cells[:] = 0.0
            each.weights.embedding[:] = 0.0


class ClosesInOneThread(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def close(self) -> None:
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        super().close()


class CountsItsSteps(AttentionEngine):
    """Is correct, and has a counter."""

    num_steps = 0

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.num_steps += 1
        return super().forward(items)

    def counters(self) -> dict[str, int]:
        return {"num_own_steps": self.num_steps}


class DropsItsCounters(CountsItsSteps):
    is_closed = False

    def counters(self) -> dict[str, int]:
        return {} if self.is_closed else super().counters()

    def close(self) -> None:
        self.is_closed = True
        super().close()


class NamesACounterWhenItFirstCounts(CountsItsSteps):
    """Has a counter of refused admissions from the first one on."""

    num_refused = 0

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        self.num_refused += admission is None
        return admission

    def counters(self) -> dict[str, int]:
        refused = {"num_refused": self.num_refused} if self.num_refused else {}
        return super().counters() | refused


class CountsAdmittedSequences(CountsItsSteps):
    """Has a number that falls when a sequence is released."""

    def counters(self) -> dict[str, int]:
        return super().counters() | {"num_admitted": self.pool.num_sequences}


class CountsReservationsAsSteps(CountsItsSteps):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        self.num_steps += 1
        return super().reserve(sequence, num_tokens)

    def counters(self) -> dict[str, int]:
        return {NUM_REPLAYED: self.num_steps, NUM_RECOMPUTED: 0}


class KeepsWhatIsNeverComputed(AttentionEngine):
    """Prepares an admitted sequence, and drops that with the first step alone."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: dict[SequenceView, Any] = {}

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            self.prepared[sequence] = sequence.prompt
        return admission

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        for item in items:
            self.prepared.pop(item.sequence, None)
        return super().forward(items)


class KeepsTheItemsOfAFailedStep(AttentionEngine):
    failed: Seq[WorkItem] = ()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        before, self.failed = self.failed, items
        output = super().forward(items)
        self.failed = before
        return output


class KeepsTheRoomOfDrafts(AttentionEngine):
    """Frees the last block of drafts when they are truncated, and not before."""

    drafting: SequenceView | None = None

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.drafting = next((item.sequence for item in items if item.drafts), None)
        return super().forward(items)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        self.drafting = None
        super().truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        super().release(sequence)
        if sequence is self.drafting:
            self.pool._take()
            self.drafting = None


class KeepsAStepAheadUntilTheNext(MockEngine):
    """Keeps the items of a started step for the one that follows it."""

    started: Seq[WorkItem] = ()

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        self.started = items
        return super().forward_next(items, token_ids)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        self.started = ()
        super().truncate(sequence, num_tokens)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.started = ()
        return super().forward(items)


ANY_CALL = "a_sequence_may_be_released_after_any_call"

LIFE = (
    Broken(
        ReadsInOneThread,
        "read() runs in several worker threads at once.",
        "prompts_are_read_while_others_run",
        raises=(RuntimeError,),
    ),
    Broken(
        RemembersOnlyTheLastPrompt,
        "The plan of a prompt holds its data for the life of its sequence.",
        "reading_a_prompt_changes_nothing_for_another",
    ),
    Broken(
        KeepsReleasedSequences,
        "A released sequence is not referenced.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsPrompts,
        "The prompt of a released sequence is not referenced.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsFeatures,
        "The features of a released sequence are not referenced.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsTheLastStep,
        "The last released sequence is not referenced either.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsRefusedSequences,
        "A refused sequence is not referenced.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        ClosesAllInstances,
        "close() frees the memory of this engine.",
        "closing_ends_one_engine_alone",
    ),
    Broken(
        ClosesInOneThread,
        "close() runs in the calling thread.",
        "closing_ends_one_engine_alone",
        raises=(RuntimeError,),
    ),
    Broken(
        DropsItsCounters,
        "Counters keep their names.",
        "counters_never_fall_and_keep_their_names",
        honest=CountsItsSteps,
    ),
    *(
        Broken(component, promise, "counters_never_fall_and_keep_their_names", honest=honest)
        for component, promise, honest in (
            (
                NamesACounterWhenItFirstCounts,
                "The names of counters are constant.",
                CountsItsSteps,
            ),
            (CountsAdmittedSequences, "Counters never fall.", CountsItsSteps),
            (
                CountsReservationsAsSteps,
                "num_replayed_steps are steps that a graph computed.",
                CountsItsSteps,
            ),
        )
    ),
    Broken(
        KeepsWhatIsNeverComputed,
        "A sequence that is released before its first step is not referenced.",
        ANY_CALL,
    ),
    Broken(
        KeepsTheItemsOfAFailedStep,
        "A sequence that is released after a failed step is not referenced.",
        ANY_CALL,
    ),
    Broken(
        KeepsTheRoomOfDrafts,
        "A sequence may be released before its drafts are truncated.",
        ANY_CALL,
    ),
    Broken(
        KeepsAStepAheadUntilTheNext,
        "A sequence that is released after forward_next is not referenced.",
        ANY_CALL,
        honest=MockEngine,
        on=OnMock,
    ),
)
