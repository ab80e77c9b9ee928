"""The engine: a table of what follows two bytes, and a paged cache of what was computed.

What a language model keeps of a token are keys and values; this one keeps the token itself, and
reads it back where a real one attends. Rooms, prefixes and drafts are the same business for both.
"""

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_yourname.settings import BytePairSettings
from vlmkit_yourname.tokenizer import ANSWER, END, VOCAB_SIZE

BLOCK_TOKENS = 16
RARE = 1e-3
"""What counts for bytes that were never seen to follow."""


def lines_of(checkpoint: Checkpoint) -> list[str]:
    """Return what the model was made of.

    Raises:
        CheckpointError: its config does not say so.
    """
    lines = checkpoint.config.get("lines")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise CheckpointError(f"config.json of model {checkpoint.name!r} must have 'lines': texts")
    return lines


class BytePairEngine:
    """Looks the two newest tokens up; see :class:`vlmkit.interfaces.engine.Engine`.

    Args:
        lines: what answers look like.
        settings: how large the cache is.
    """

    def __init__(self, lines: Seq[str], settings: BytePairSettings | None = None) -> None:
        settings = settings or BytePairSettings()
        self._pool = BlockPool(settings.capacity_tokens // BLOCK_TOKENS, BLOCK_TOKENS)
        self._cache = np.zeros((self._pool.num_blocks, BLOCK_TOKENS), np.int32)
        capacity_tokens = self._pool.num_blocks * BLOCK_TOKENS
        self.limits = EngineLimits(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=capacity_tokens,
            max_sequences=64,
            capacity_tokens=capacity_tokens,
            max_chunk_tokens=1024,
            mixes_prefill_and_decode=True,
            prefix_block_tokens=BLOCK_TOKENS,
            is_batch_invariant=True,
            max_item_rows=1024,
            max_draft_tokens=16,
        )
        self._after_one = np.full((VOCAB_SIZE, VOCAB_SIZE), RARE, np.float32)
        self._after_two: dict[tuple[int, int], Any] = {}
        for line in lines:
            token_ids = [ANSWER, *line.encode(), END]
            for one, following in pairwise(token_ids):
                self._after_one[one, following] += 1
            for one, two, following in zip(token_ids, token_ids[1:], token_ids[2:], strict=False):
                counts = self._after_two.setdefault((one, two), np.full(VOCAB_SIZE, RARE))
                counts[following] += 1

    def read(self, prompt: Prompt) -> PromptPlan:
        """Any chunk will do."""
        return PromptPlan()

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room for all present tokens and one more, if there is any."""
        if self._pool.num_sequences == self.limits.max_sequences:
            return None
        return self._pool.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens``."""
        return self._pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let others share the first ``num_tokens``."""
        self._pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget what comes after the first ``num_tokens``."""
        self._pool.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Give the room up."""
        self._pool.release(sequence)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Write every token of the items into the cache, and return the rows that they want."""
        rows = [row for item in items for row in self._rows(item)]
        return StepOutput(np.stack(rows) if rows else None)

    def close(self) -> None:
        """Free the cache."""
        self._cache = np.zeros((0, BLOCK_TOKENS), np.int32)

    def _rows(self, item: WorkItem) -> list[Any]:
        """Return ``num_rows`` rows ``[vocab]`` float32, of the item's last tokens in order."""
        blocks = np.array(self._pool.blocks(item.sequence))
        places = np.arange(item.start, item.stop)
        self._cache[blocks[places // BLOCK_TOKENS], places % BLOCK_TOKENS] = item.token_ids
        before = np.maximum(places[len(places) - item.num_rows :] - 1, 0)
        held = self._cache[blocks[before // BLOCK_TOKENS], before % BLOCK_TOKENS]
        newest = item.token_ids[len(places) - item.num_rows :]
        return [self._logits(int(one), two) for one, two in zip(held, newest, strict=True)]

    def _logits(self, one: int, two: int) -> Any:
        counts = self._after_two.get((one, two), self._after_one[two])
        return np.log(counts).astype(np.float32)
