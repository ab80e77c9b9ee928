"""A language model of one attention layer in NumPy, in which typical errors change the logits.

A wrong cache cell, position or feature row gives other logits. :class:`AttentionEngine` claims
every capability; :class:`PlainEngine` claims none.
"""

import dataclasses
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool

VOCAB_SIZE, WIDTH = 32, 8
IMAGE, BEGIN, END = 29, 30, 31  # an image is BEGIN, a token for each feature row, and END
NUM_BLOCKS, BLOCK_TOKENS = 64, 4
NUM_POSITIONS = 128

Floats = np.ndarray[Any, Any]


def image(num_rows: int, start: int, content: int) -> MediaSlot:
    """Return the slot of an image that begins at ``start``, marks included."""
    digest = content.to_bytes(32, "big")
    return MediaSlot(start, start + num_rows + 2, digest, {}, num_rows)


def prompt_of(*parts: int | list[int], content: int = 1) -> Prompt:
    """Return a prompt of tokens and images; an image is given by its number of rows."""
    ids: list[int] = []
    media: list[MediaSlot] = []
    for part in parts:
        if isinstance(part, int):
            media.append(image(part, len(ids), content + len(media)))
            ids += [BEGIN, *[IMAGE] * part, END]
        else:
            ids += part
    return Prompt(tuple(ids), tuple(media))


def features_of(prompt: Prompt) -> Mapping[int, MediaFeatures]:
    """Return rows of noise for each image, by digest."""
    found = {}
    for index, slot in enumerate(prompt.media):
        noise = np.random.default_rng(int.from_bytes(slot.digest, "big"))
        rows = noise.standard_normal((slot.num_features, WIDTH))
        found[index] = MediaFeatures(slot.num_features, rows, num_bytes=rows.nbytes)
    return found


class Weights:
    """Weights that are equal in every engine."""

    def __init__(self) -> None:
        noise = np.random.default_rng(5)
        self.embedding = noise.standard_normal((VOCAB_SIZE, WIDTH))
        self.positions = 0.5 * noise.standard_normal((NUM_POSITIONS, WIDTH))
        self.query, self.key, self.value = noise.standard_normal((3, WIDTH, WIDTH)) / WIDTH**0.5
        self.head = 2 * noise.standard_normal((WIDTH, VOCAB_SIZE))


def truth(prompt: Prompt) -> Floats:
    """Return the logits after a prompt, computed without a cache, as the reference."""
    weights, features = Weights(), features_of(prompt)
    x = weights.embedding[list(prompt.token_ids)]
    for index, slot in enumerate(prompt.media):
        x[slot.start + 1 : slot.stop - 1] = features[index].embeddings
    x = x + weights.positions[: len(x)]
    scores = (x @ weights.key) @ (x[-1] @ weights.query)
    chances = np.exp(scores - scores.max())
    seen = chances @ (x @ weights.value) / chances.sum()
    return np.tanh(x[-1] + seen) @ weights.head


class AttentionEngine:
    """Pages its cache, shares prefixes, accepts drafts and returns any row of any kind.

    Attributes:
        images_are_atomic: whether an image must be computed in one chunk, as bidirectional
            attention needs. Attention here is causal.
    """

    limits = EngineLimits(
        vocab_size=VOCAB_SIZE,
        max_sequence_tokens=96,
        max_sequences=6,
        capacity_tokens=NUM_BLOCKS * BLOCK_TOKENS,
        max_chunk_tokens=24,
        mixes_prefill_and_decode=True,
        prefix_block_tokens=BLOCK_TOKENS,
        is_batch_invariant=True,
        max_item_rows=10,
        max_draft_tokens=7,
        hidden_size=WIDTH,
        precision="float64",
    )

    Pool = BlockPool

    images_are_atomic = False

    def __init__(self) -> None:
        self.weights = Weights()
        self.pool = self.Pool(NUM_BLOCKS, BLOCK_TOKENS)
        self.cells = np.full((2, NUM_BLOCKS * BLOCK_TOKENS, WIDTH), np.nan)

    @property
    def num_free_tokens(self) -> int:
        """The tokens that no admitted sequence reserves."""
        return self.pool.num_free_blocks * self.pool.block_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report shared and removed blocks."""
        self.pool.listener = listener

    # Room

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Reserve room; reuse whole blocks."""
        if self.pool.num_sequences == self.limits.max_sequences:
            return None
        return self.pool.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Reserve room for the first ``num_tokens``."""
        return self.pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Publish whole blocks."""
        self.pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Free the blocks that only drafts needed."""
        self.pool.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Free all blocks of a sequence."""
        self.pool.release(sequence)

    # Computation

    def read(self, prompt: Prompt) -> PromptPlan:
        """Return the spans of images and the numbers of their rows."""
        spans = [Span(slot.start, slot.stop) for slot in prompt.media if self.images_are_atomic]
        return PromptPlan(tuple(spans), "read")

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items one by one."""
        rows: dict[str, list[Floats]] = {"logits": [], "hidden": []}
        for item in items:
            hidden = self.compute(item)[item.num_tokens - item.num_rows :]
            if item.num_rows:
                rows[item.output].append(self.rows(item, hidden))
        return StepOutput(**{kind: np.concatenate(made) for kind, made in rows.items() if made})

    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        """Return the hidden states that an item wants."""
        return hidden @ self.weights.head if item.output == "logits" else hidden

    def compute(self, item: WorkItem) -> Floats:
        """Write the keys and values of an item's tokens; return their hidden states."""
        weights, cell_ids = self.weights, self.cell_ids(item)
        x = self.inputs(item) + weights.positions[self.positions(item)]
        self.write(cell_ids[item.start :], np.stack([x @ weights.key, x @ weights.value]))
        keys, values = self.cells[:, cell_ids]
        scores = (x @ weights.query) @ keys.T
        scores[self.unseen(item)] = -np.inf
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.tanh(x + chances @ values / chances.sum(axis=1, keepdims=True))

    def unseen(self, item: WorkItem) -> Floats:
        """Return the mask of later tokens, which a token of an item does not attend to."""
        return np.arange(item.stop) > np.arange(item.start, item.stop)[:, None]

    def positions(self, item: WorkItem) -> Floats:
        """Return the positions of an item's tokens."""
        return np.arange(item.start, item.stop)

    def inputs(self, item: WorkItem) -> Floats:
        """Return the embedding or feature row of each token of an item."""
        made = self.weights.embedding[list(item.token_ids)]
        for index, slot in enumerate(item.sequence.prompt.media):
            first, stop = max(item.start, slot.start + 1), min(item.stop, slot.stop - 1)
            if first < stop:
                rows = self.image_rows(item, index, first - slot.start - 1, stop - first)
                made[first - item.start : stop - item.start] = rows
        return made

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        """Return rows of an image."""
        return item.sequence.features[index].embeddings[first : first + num_rows]

    def cell_ids(self, item: WorkItem) -> Floats:
        """Return the cells of a sequence's tokens up to the end of an item."""
        size, position = self.pool.block_tokens, np.arange(item.stop)
        return np.array(self.pool.blocks(item.sequence))[position // size] * size + position % size

    def write(self, cell_ids: Floats, made: Floats) -> None:
        """Write into cells."""
        self.cells[:, cell_ids] = made

    def close(self) -> None:
        """Drop everything."""
        del self.cells


class PlainEngine(AttentionEngine):
    """Has a slot for each sequence and claims nothing: one row an item, no mixed steps."""

    limits = dataclasses.replace(
        AttentionEngine.limits,
        mixes_prefill_and_decode=False,
        prefix_block_tokens=0,
        is_batch_invariant=False,
        max_item_rows=1,
        max_draft_tokens=0,
        hidden_size=0,
        precision="",
        max_sequences=2,
    )

    def __init__(self) -> None:
        self.weights = Weights()
        self.cells = np.full((2, self.limits.capacity_tokens, WIDTH), np.nan)
        self.slots: dict[SequenceView, int] = {}

    @property
    def num_free_tokens(self) -> int:
        """The tokens of free slots."""
        return self.limits.capacity_tokens - len(self.slots) * self.slot_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report nothing, because nothing is shared."""

    @property
    def slot_tokens(self) -> int:
        """The tokens of a slot."""
        return self.limits.capacity_tokens // self.limits.max_sequences

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Assign a free slot."""
        free = set(range(self.limits.max_sequences)) - set(self.slots.values())
        if not free:
            return None
        self.slots[sequence] = min(free)
        return Admission(0)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Return whether ``num_tokens`` fit."""
        return num_tokens <= self.slot_tokens

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Never called, because nothing is shared."""
        raise NotImplementedError

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Never called, because drafts are not supported."""
        raise NotImplementedError

    def release(self, sequence: SequenceView) -> None:
        """Free the slot."""
        del self.slots[sequence]

    def cell_ids(self, item: WorkItem) -> Floats:
        """Return the cells of a sequence's tokens up to the end of an item."""
        return self.slots[item.sequence] * self.slot_tokens + np.arange(item.stop)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items into an array that the next step overwrites."""
        chunks = [i for i in items if i.start < i.sequence.num_prompt_tokens or i.num_tokens > 1]
        assert not chunks or len(items) == 1, "a step is of answers, or one chunk"
        output = super().forward(items)
        if output.logits is None:
            return output
        self.output = getattr(self, "output", np.zeros((self.limits.max_sequences, VOCAB_SIZE)))
        self.output[: len(output.logits)] = output.logits
        return StepOutput(self.output[: len(output.logits)])
