"""The engine: one layer of attention with random weights, over a paged cache.

The cache holds a vector for each token, in place of the keys and values of a language model. The
pool assigns blocks of the cache, shares prefixes, and takes blocks back from rejected drafts.
"""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_yourname.settings import AttentionSettings

VOCAB_SIZE, HIDDEN = 269, 8  # of the model `mock`: its tokens, and the width of its features
IMAGE = 263  # the placeholder that each feature row of an image replaces
BLOCK_TOKENS = 16
PERIODS = np.float32(2.0) ** np.arange(HIDDEN, dtype=np.float32)


class AttentionEngine:
    """Attends to all tokens of a sequence; see :class:`vlmkit.interfaces.engine.Engine`.

    Args:
        settings: the size of the cache.
    """

    def __init__(self, settings: AttentionSettings | None = None) -> None:
        settings = settings or AttentionSettings()
        self._pool = BlockPool(settings.capacity_tokens // BLOCK_TOKENS, BLOCK_TOKENS)
        capacity_tokens = self._pool.num_blocks * BLOCK_TOKENS
        self._cache = np.zeros((capacity_tokens, HIDDEN), np.float32)
        self.limits = EngineLimits(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=capacity_tokens,
            max_sequences=64,
            capacity_tokens=capacity_tokens,
            max_chunk_tokens=1024,
            mixes_prefill_and_decode=True,
            prefix_block_tokens=BLOCK_TOKENS,
            max_item_rows=1024,
            max_draft_tokens=16,
        )
        numbers = np.random.default_rng(0)
        self._embeddings = numbers.standard_normal((VOCAB_SIZE, HIDDEN), np.float32)
        self._head = numbers.standard_normal((HIDDEN, VOCAB_SIZE), np.float32)

    def read(self, prompt: Prompt) -> PromptPlan:
        """Return a plan without atomic spans: a chunk may end anywhere."""
        return PromptPlan()

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Allocate blocks for all present tokens and one more; None if full."""
        if self._pool.num_sequences == self.limits.max_sequences:
            return None
        return self._pool.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Allocate blocks for the first ``num_tokens``; False if full."""
        return self._pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Share the full blocks of the first ``num_tokens`` with other sequences."""
        self._pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Free the blocks of rejected drafts; the next tokens overwrite the rest."""
        self._pool.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Free the blocks of a sequence."""
        self._pool.release(sequence)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Write the vectors of all tokens into the cache, then compute the requested rows.

        Raises:
            EngineError: the features of an image are missing or have another shape.
        """
        vectors = [self._vectors(item) for item in items]  # before the cache changes
        rows: list[Any] = []
        for item, own in zip(items, vectors, strict=True):
            cells = self._cells(item.sequence, item.stop)
            self._cache[cells[item.start :]] = own
            seen = self._cache[cells]
            stops = range(item.stop - item.num_rows + 1, item.stop + 1)
            rows += [self._logits(seen[:stop]) for stop in stops]
        return StepOutput(np.stack(rows) if rows else None)

    def close(self) -> None:
        """Free the cache."""
        self._cache = np.zeros((0, HIDDEN), np.float32)

    def _cells(self, sequence: SequenceView, num_tokens: int) -> Any:
        """Return the cache rows of the first tokens, ``[seq]``."""
        blocks = np.array(self._pool.blocks(sequence))
        positions = np.arange(num_tokens)
        return blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def _vectors(self, item: WorkItem) -> Any:
        """Return the vectors of an item's tokens with their positions, ``[tokens, HIDDEN]``."""
        vectors = self._embeddings[list(item.token_ids)]
        for index, slot in enumerate(item.sequence.prompt.media):
            if slot.start >= item.stop or slot.stop <= item.start:
                continue
            features = item.sequence.features.get(index)
            if features is None or features.embeddings.shape != (slot.num_features, HIDDEN):
                raise EngineError(f"image {index} of a prompt has no features of its shape")
            token_ids = item.sequence.prompt.token_ids
            replaced = [i for i in range(slot.start, slot.stop) if token_ids[i] == IMAGE]
            for position, row in zip(replaced, _rows(features.embeddings), strict=True):
                if item.start <= position < item.stop:
                    vectors[position - item.start] = row
        positions = np.arange(item.start, item.stop, dtype=np.float32)[:, None]
        return vectors + np.sin(positions / PERIODS)

    def _logits(self, seen: Any) -> Any:
        """Return the logits after some vectors ``[seq, HIDDEN]``, of which the last one attends."""
        weights = seen @ seen[-1] / np.sqrt(np.float32(HIDDEN))
        weights = np.exp(weights - weights.max())
        return (weights @ seen / weights.sum() + seen[-1]) @ self._head


def _rows(embeddings: Any) -> Any:
    """Return the rows of a feature, which may be of any array library."""
    return np.asarray(np.from_dlpack(embeddings), np.float32)
