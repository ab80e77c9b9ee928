"""What an engine that emits cache events must do: report exactly what later sequences find."""

from collections.abc import Callable
from itertools import accumulate

import pytest

from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.engine import EmitsCacheEvents, EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.cache_index import CacheIndex
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

MORE_TOKENS = 48
"""Tokens after a prompt, so that even a short one fills a block of common size."""


class EventRecorder:
    """A listener that keeps an index, and fails on events that contradict it.

    Args:
        limits: of the engine, which state the size of blocks.

    Attributes:
        index: the blocks that are stored.
        new: the blocks that were stored since the attribute was last cleared.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._block_tokens = limits.event_block_tokens or limits.prefix_block_tokens
        self.index = CacheIndex()
        self.new: list[CacheBlock] = []

    def stored(self, block: CacheBlock) -> None:
        """Add a block, which must be new."""
        assert block.key not in self.index.blocks, "a block is stored that is stored already"
        num_tokens = len(block.tokens)
        assert num_tokens == self._block_tokens, (
            f"a block of {num_tokens} tokens is stored, the limits say {self._block_tokens}"
        )
        self.index.apply(CacheChange((block,)))
        self.new.append(block)

    def removed(self, key: bytes) -> None:
        """Remove a block, which must be stored."""
        assert key in self.index.blocks, "a block is removed that is not stored"
        self.index.apply(CacheChange(removed=(key,)))

    def cleared(self) -> None:
        """Remove all blocks."""
        self.index.apply(CacheChange(is_cleared=True))

    def expectation(self, sequence: EngineSequence) -> Callable[[int], None]:
        """Return a check of the number of cached tokens that ``admit`` finds of a sequence."""
        lengths = [len(block.tokens) for block in self.index.prefix(sequence)]
        sizes = (len(block.tokens) for block in self.index.blocks.values())
        largest = max(sizes, default=self._block_tokens)
        expected = max(end for end in accumulate([0, *lengths]) if end <= sequence.first_row)

        def check(num_cached: int) -> None:
            assert num_cached < expected + largest, "admit() finds blocks that were not reported"
            if not sequence.plan.spans:
                assert num_cached >= expected, "blocks are reported that admit() does not find"

        return check


class EngineEventsContract(EngineSubject):
    """Cache events; an engine without ``set_cache_listener`` skips these tests."""

    def recorded(self, host: EngineHost) -> EventRecorder:
        """Return a recorder of the engine's events; skip if it emits none."""
        if not isinstance(host.engine, EmitsCacheEvents):
            pytest.skip("this engine emits no cache events")
        recorder = EventRecorder(host.engine.limits)
        host.engine.set_cache_listener(recorder)
        return recorder

    def test_cache_events_describe_what_admit_finds(self, host: EngineHost) -> None:
        """For each prompt, also with images, after its sequence is released."""
        recorder = self.recorded(host)
        self.needs_sharing(host.engine)
        for number, prompt in enumerate(self.asked):
            self._computed(host, prompt, b"e%d" % number)
            assert recorder.new, "nothing is reported of a prompt whose blocks are full"
            recorder.new.clear()
            self._agrees(host, recorder, prompt, b"e%d" % number)

    def test_cache_events_report_evicted_blocks(self, host: EngineHost) -> None:
        """An index that keeps evicted blocks promises prefixes that must be computed again."""
        recorder = self.recorded(host)
        self.needs_sharing(host.engine)
        prompt = self._text_prompt()
        for number in range(3):
            self._computed(host, prompt, b"e%d" % number)
        num_others = host.engine.limits.capacity_tokens // self._num_tokens(host, prompt) + 1
        for number in range(num_others):
            self._computed(host, prompt, b"o%d" % number)
        for number in range(3):
            self._agrees(host, recorder, prompt, b"e%d" % number)

    def test_only_committed_blocks_are_reported(self, host: EngineHost, longest: Prompt) -> None:
        """Others cannot reuse a block before its tokens are committed, nor one of drafts."""
        recorder = self.recorded(host)
        sequence = host.sequence(longest, self._answer(host, longest), scope=b"a")
        assert host.admit(sequence) == 0
        while not (item := host.chunk(sequence)).num_rows:
            host.step([item], commits=False)
        host.step([item], commits=False)
        beside = host.sequence(longest, scope=b"b")
        if host.admit(beside) is not None:
            host.engine.release(beside)
        assert not recorder.new, "a block is reported that was not committed"
        host.engine.release(sequence)
        assert not recorder.new, "a block of a released sequence was never committed"

    def test_reported_blocks_are_those_of_the_sequence(self, host: EngineHost) -> None:
        """Scope, tokens and media, and each block names its parent."""
        recorder = self.recorded(host)
        self.needs_sharing(host.engine)
        for number, prompt in enumerate(self.asked):
            sequence = self._computed(host, prompt, b"s%d" % number)
            found = recorder.index.prefix(sequence)
            assert found == recorder.new, "a reported block is not one of the sequence, in order"
            assert {block.scope for block in found} == {sequence.scope}
            shown = {digest for block in found for digest in block.media}
            num_tokens = sum(len(block.tokens) for block in found)
            within = {slot.digest for slot in prompt.media if slot.start < num_tokens}
            assert shown == within, "a block names the digests of the media that overlap it"
            recorder.new.clear()

    def test_a_prefix_that_two_sequences_compute_is_reported_once(self, host: EngineHost) -> None:
        """They were admitted before it was cached; either may end first."""
        self.together(host.engine.limits)
        recorder = self.recorded(host)
        self.needs_sharing(host.engine)
        prompt = self._text_prompt()
        answer = self._answer(host, prompt)
        for number, order in enumerate((slice(None), slice(None, None, -1))):
            pair = [host.sequence(prompt, answer, scope=b"p%d" % number) for _ in range(2)]
            if any(host.admit(sequence) is None for sequence in pair):
                pytest.skip("this engine has no room for two of its sequences")
            for sequence in pair:
                host.prefill(sequence)
            for sequence in pair[order]:
                host.engine.release(sequence)
            self._agrees(host, recorder, prompt, b"p%d" % number)

    def test_equal_tokens_of_other_scopes_or_pictures_have_other_keys(
        self, host: EngineHost
    ) -> None:
        """A router must not send a tenant to the cached blocks of another."""
        recorder = self.recorded(host)
        self.needs_sharing(host.engine)
        prompts = [(self.shortest, b"a"), (self.shortest, b"b")]
        twins = self.twins() or ()
        if all(host.engine.read(twin).max_shared_tokens is None for twin in twins):
            prompts += [(twin, b"t") for twin in twins]
        keys: list[set[bytes]] = []
        for prompt, scope in prompts:
            sequence = self._computed(host, prompt, scope)
            found = recorder.index.prefix(sequence)
            assert found, "nothing is reported of a prompt whose blocks are full"
            keys.append({block.key for block in found})
        assert not keys[0] & keys[1], "blocks of two scopes have one key"
        assert len(keys) < 4 or keys[2] != keys[3], "blocks of two pictures have one key"

    # Helpers

    def _computed(self, host: EngineHost, prompt: Prompt, scope: bytes) -> EngineSequence:
        """Compute a prompt and an answer, and release them; return their sequence."""
        sequence = host.sequence(prompt, self._answer(host, prompt), scope=scope)
        assert host.admit(sequence) is not None
        host.prefill(sequence)
        host.engine.release(sequence)
        return sequence

    def _agrees(
        self, host: EngineHost, recorder: EventRecorder, prompt: Prompt, scope: bytes
    ) -> None:
        """Compare the blocks of a prompt in the index with what ``admit`` finds of it."""
        sequence = host.sequence(prompt, self._answer(host, prompt), scope=scope)
        check = recorder.expectation(sequence)
        num_cached = host.admit(sequence)
        assert num_cached is not None
        host.engine.release(sequence)
        check(num_cached)

    def _answer(self, host: EngineHost, prompt: Prompt) -> list[int]:
        return self.tokens(self._num_tokens(host, prompt) - len(prompt))

    def _num_tokens(self, host: EngineHost, prompt: Prompt) -> int:
        longest = min(self.most_tokens, host.engine.limits.max_sequence_tokens - 1)
        return max(len(prompt), min(longest, len(prompt) + MORE_TOKENS))

    def _text_prompt(self) -> Prompt:
        """Return the shortest prompt without media; skip without one."""
        prompts = [prompt for prompt in self.asked if not prompt.media]
        if not prompts:
            pytest.skip("every prompt has media")
        return min(prompts, key=len)
