"""Engines that keep what is gone, or mind in which thread they are asked."""

import threading
from typing import Any

from honest.engine import AttentionEngine, Floats
from msgspec import structs

from broken.broken import Broken
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView


class ReadsInOneThread(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def read(self, prompt: Prompt) -> PromptPlan:
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().read(prompt)


class KnowsTheLastPromptAlone(AttentionEngine):
    """Keeps what it made of a prompt in itself, where the next one takes its place."""

    def read(self, prompt: Prompt) -> PromptPlan:
        self.num_prompt = len(prompt)
        return super().read(prompt)

    def positions(self, item: WorkItem) -> Floats:
        return super().positions(item) % self.num_prompt


class KeepsSequences(AttentionEngine):
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


class KeepsWhoWasRefused(AttentionEngine):
    refused: SequenceView | None = None

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        self.refused = sequence if admission is None else None
        return admission


class ClosesForEverybody(AttentionEngine):
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


LIFE = (
    Broken(
        ReadsInOneThread,
        "read() runs in several worker threads at once.",
        "prompts_are_read_while_others_run",
        raises=(RuntimeError,),
    ),
    Broken(
        KnowsTheLastPromptAlone,
        "What was made of a prompt is kept for its sequence's life, in its plan.",
        "reading_a_prompt_changes_nothing_for_another",
    ),
    Broken(
        KeepsSequences, "Nothing keeps a sequence that left.", "a_released_sequence_is_forgotten"
    ),
    Broken(
        KeepsPrompts,
        "Nothing keeps the prompt of one who left.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsFeatures,
        "Nothing keeps the features of one who left.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        KeepsTheLastStep, "The last one who left is gone, too.", "a_released_sequence_is_forgotten"
    ),
    Broken(
        KeepsWhoWasRefused, "Nothing keeps one who was refused.", "a_released_sequence_is_forgotten"
    ),
    Broken(
        ClosesForEverybody,
        "close() frees the memory of this engine.",
        "closing_ends_one_engine_alone",
    ),
    Broken(
        ClosesInOneThread,
        "close() runs in the thread that closes.",
        "closing_ends_one_engine_alone",
        raises=(RuntimeError,),
    ),
)
