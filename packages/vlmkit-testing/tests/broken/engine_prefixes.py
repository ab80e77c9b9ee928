"""Engines that share the wrong prefixes, or none."""

from collections.abc import Callable, Sequence as Seq
from hashlib import sha256
from typing import Any

from honest.engine import AttentionEngine

from broken.broken import Broken
from broken.engine_numbers import claiming
from broken.engine_subjects import OnAtomic
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool


class PublishesAtAdmission(AttentionEngine):
    """Publishes blocks at admission, before they are computed."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            self.pool.commit(sequence, len(sequence))
        return admission


class WithDrafts:
    """A sequence with appended drafts."""

    def __init__(self, sequence: SequenceView, drafts: tuple[int, ...]) -> None:
        self._sequence, self._drafts = sequence, drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)

    def tokens(self, start: int, stop: int) -> Seq[int]:
        return (*self._sequence.tokens(0, len(self._sequence)), *self._drafts)[start:stop]


class SharesDrafts(AttentionEngine):
    """Publishes full blocks, blocks of drafts included."""

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        for item in items:
            table = self.pool._tables[item.sequence]
            if item.drafts:
                keys, table.keys = table.keys, list(table.keys)
                shown: Any = WithDrafts(item.sequence, item.drafts)
                for index in range(item.stop // self.pool.block_tokens):
                    key = self.pool._key(shown, table, index)
                    if key not in self.pool._block_of:
                        self.pool._block_of[key] = table.blocks[index]
                        self.pool._key_of[table.blocks[index]] = key
                table.keys = keys
        return super().forward(items)


class SharesPartialBlocks(AttentionEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        return admission and Admission(max(0, admission.num_cached - 1))


class SharesHalfAnImage(AttentionEngine):
    class Pool(BlockPool):
        def _find_prefix(
            self,
            sequence: SequenceView,
            table: Any,
            usable: Callable[[int], int] | None,
        ) -> list[int]:
            found: list[int] = []
            for index in range(sequence.first_row // self.block_tokens):
                block = self._block_of.get(self._key(sequence, table, index))
                if block is None:
                    break
                found.append(block)
            return found[:5]


class WritesIntoSharedBlocks(AttentionEngine):
    """Shares the block in which two prompts diverge, without a copy."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        for other, table in self.pool._tables.items():
            if admission and other is not sequence and other.scope == sequence.scope:
                index = admission.num_cached // self.pool.block_tokens
                self.pool._tables[sequence].blocks[index] = table.blocks[index]
        return admission


class FreesSharedBlocks(AttentionEngine):
    class Pool(BlockPool):
        def _drop(self, block: int) -> None:
            self._num_users[block] = 1
            super()._drop(block)


class TruncatesSharedBlocks(AttentionEngine):
    """Drops its use of shared blocks when it truncates drafts, and again at release."""

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        super().truncate(sequence, num_tokens)
        for block in self.pool.blocks(sequence):
            if self.pool._num_users[block] > 1:
                self.pool._num_users[block] -= 1


class LeavesSharedBlocksWritable(AttentionEngine):
    """Frees the blocks before the drafts, so another sequence may get them."""

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        super().truncate(sequence, num_tokens)
        for block in self.pool.blocks(sequence)[: num_tokens // self.pool.block_tokens]:
            self.pool._free[block] = None


class FindsBlocksByPositionAlone(AttentionEngine):
    class Pool(BlockPool):
        def _key(self, sequence: SequenceView, table: Any, index: int) -> bytes:
            return sha256(sequence.scope + b"%d" % index).digest()


class IgnoresImagesOfPrefixes(AttentionEngine):
    class Pool(BlockPool):
        def _key(self, sequence: SequenceView, table: Any, index: int) -> bytes:
            ids = bytes(sequence.tokens(0, (index + 1) * self.block_tokens))
            return sha256(sequence.scope + ids).digest()


class IgnoresTheOrderOfImages(AttentionEngine):
    class Pool(BlockPool):
        def _key(self, sequence: SequenceView, table: Any, index: int) -> bytes:
            ids = bytes(sequence.tokens(0, (index + 1) * self.block_tokens))
            seen = sorted(slot.digest for slot in sequence.prompt.media)
            return sha256(sequence.scope + ids + b"".join(seen)).digest()


class FindsOverwrittenBlocks(AttentionEngine):
    class Pool(BlockPool):
        def _take(self) -> int:
            block, _ = self._free.popitem(last=False)
            self._num_users[block] = 1
            return block


class RestoresBlocksThatAnAnswerTookOver(AttentionEngine):
    """Saves the blocks of a released sequence, and forgets that when ``admit`` takes one anew."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[int, Any] = {}

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None:
            blocks = self.pool.blocks(sequence)
            num_shared = admission.num_cached // self.pool.block_tokens
            for block in self.saved.keys() & blocks[:num_shared]:
                self.cells[:, self._cells(block)] = self.saved[block]
            for block in blocks[num_shared:]:
                self.saved.pop(block, None)
        return admission

    def release(self, sequence: SequenceView) -> None:
        for block in self.pool.blocks(sequence):
            self.saved.setdefault(block, self.cells[:, self._cells(block)].copy())
        super().release(sequence)

    def _cells(self, block: int) -> slice:
        block_tokens = self.pool.block_tokens
        return slice(block * block_tokens, (block + 1) * block_tokens)


class FindsThePrefixOfARefusedSequence(AttentionEngine):
    """Keeps the keys of a refused sequence for the next call of ``admit``."""

    class Pool(BlockPool):
        def admit(self, sequence: SequenceView, **more: Any) -> Admission | None:
            if self._refused is not None:
                self._refused = sequence.id, self._refused[1]
            return super().admit(sequence, **more)


class SharesWithoutTheClaim(AttentionEngine):
    limits = claiming(prefix_block_tokens=0)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        for item in items:
            self.pool.commit(item.sequence, item.stop - len(item.drafts))
        return output


PREFIXES = (
    Broken(
        PublishesAtAdmission,
        "A prefix is found only after it is computed.",
        "nothing_is_found_before_it_is_computed",
    ),
    Broken(
        SharesDrafts,
        "No other sequence finds drafts before they are committed.",
        "only_accepted_drafts_are_found_in_the_cache",
    ),
    Broken(
        SharesPartialBlocks,
        "A cached prefix is shared in multiples of prefix_block_tokens.",
        "a_cached_prefix_is_used_and_changes_nothing",
    ),
    Broken(
        SharesHalfAnImage,
        "A cached prefix never ends inside an atomic span.",
        "a_cached_prefix_is_used_and_changes_nothing",
        on=OnAtomic,
    ),
    Broken(
        WritesIntoSharedBlocks,
        "Sequences that share a prefix and then differ do not affect each other.",
        "a_prefix_is_shared_with_one_that_still_runs",
    ),
    Broken(
        FreesSharedBlocks,
        "A release frees no blocks that others share.",
        "a_prefix_is_shared_with_one_that_still_runs",
    ),
    Broken(
        TruncatesSharedBlocks,
        "Rejected drafts free no committed blocks.",
        "a_shared_block_is_never_overwritten",
    ),
    Broken(
        LeavesSharedBlocksWritable,
        "A committed block is not overwritten while a sequence uses it.",
        "a_shared_block_is_never_overwritten",
    ),
    Broken(
        FindsBlocksByPositionAlone,
        "A cached prefix has the tokens of the prompt.",
        "a_prompt_shares_only_what_is_equal",
    ),
    Broken(
        SharesWithoutTheClaim,
        "An engine whose prefix_block_tokens are 0 shares nothing.",
        "a_prompt_shares_only_what_is_equal",
    ),
    Broken(
        IgnoresImagesOfPrefixes,
        "A cached prefix has the images of the prompt.",
        "another_picture_is_not_shared",
    ),
    Broken(
        IgnoresTheOrderOfImages,
        "A cached prefix has the images of the prompt in their order.",
        "images_in_another_order_are_not_shared",
    ),
    Broken(
        FindsOverwrittenBlocks,
        "Blocks of released sequences are found until they are reused.",
        "an_evicted_prefix_is_no_longer_found",
    ),
    Broken(
        RestoresBlocksThatAnAnswerTookOver,
        "A committed block has the tokens that were committed.",
        "an_answer_that_grew_into_evicted_blocks_is_found_there",
    ),
    Broken(
        FindsThePrefixOfARefusedSequence,
        "A refused sequence changes nothing for the next one.",
        "a_refused_sequence_gives_its_prefix_to_no_other",
    ),
)
