"""The largest steps of an engine: the last tokens of the longest prompts, and many decodes.

``memory_plan`` runs them without numbers, and ``measured_memory`` on a device.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.types.sampling import SamplingParams


class SizedEngine(Engine, Protocol):
    """An engine that states the memory of its recurrent states."""

    @property
    def is_recurrent(self) -> bool:
        """Whether layers have a state of fixed size."""
        ...

    def state_bytes(self, sequence: SequenceView) -> int:
        """Return the bytes of the recurrent states of an admitted sequence."""
        ...


def admitted(engine: SizedEngine, num_tokens: int, num: int) -> list[Sequence]:
    """Return sequences with prompts of ``num_tokens`` that the engine admitted, at most ``num``."""
    sequences: list[Sequence] = []
    for number in range(num):
        prompt = Prompt((0,) * num_tokens)
        sequence = Sequence(
            f"plan {number}",
            prompt,
            SamplingParams(),
            scope=str(number).encode(),
            plan=engine.read(prompt),
        )
        if engine.admit(sequence) is None:
            break
        sequences.append(sequence)
    return sequences


def last_chunks(
    engine: SizedEngine,
    sequences: Seq[Sequence],
    max_step_tokens: int,
    *,
    has_all_rows: bool = False,
) -> list[WorkItem]:
    """Return the last chunks of prompts, as many as fit into a step.

    Args:
        engine: that admitted the sequences.
        sequences: with prompts of equal length.
        max_step_tokens: tokens of the step.
        has_all_rows: whether every token has logits, as drafts have.
    """
    chunks = []
    for sequence in sequences:
        num_tokens = sequence.num_prompt_tokens
        chunk = min(num_tokens, engine.limits.max_chunk_tokens, max_step_tokens)
        if chunk < 1:
            break
        # A recurrent layer needs the state before its first token.
        start = 0 if engine.is_recurrent else num_tokens - chunk
        num_rows = min(chunk, engine.limits.max_item_rows) if has_all_rows else 1
        chunks.append(WorkItem(sequence, start, chunk, num_rows=num_rows))
        max_step_tokens -= chunk
    return chunks


def decodes(sequences: Seq[Sequence]) -> list[WorkItem]:
    """Give each sequence the first token of its answer, and return the step that computes them."""
    for sequence in sequences:
        sequence.output_ids.append(0)
    return [WorkItem(each, each.num_prompt_tokens, 1, num_rows=1) for each in sequences]
