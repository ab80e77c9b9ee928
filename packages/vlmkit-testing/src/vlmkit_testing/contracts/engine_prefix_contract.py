"""What an engine that shares prefixes must do: find the right blocks, and never others."""

import dataclasses

import pytest

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_testing.contracts.engine_host import EngineHost, Row
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

MAX_GROWN = 8  # answers that grow into all blocks of a small cache
LONG_SCOPE = b"a digest of a tenant has 32 bytes"
NOT_FOUND = "admit() found nothing of a prompt that was computed before and whose blocks are full"


class EnginePrefixContract(EngineSubject):
    """Shared prefixes; isolation is checked on engines without sharing, too."""

    def pictured_twins(self) -> tuple[Prompt, Prompt]:
        """Return two prompts that differ only in their pictures; skip without pictures."""
        if (twins := self.twins()) is None:
            pytest.skip("no pictures were given")
        assert twins[0].token_ids == twins[1].token_ids
        return twins

    # What is found

    def test_a_cached_prefix_is_used_and_changes_nothing(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """The second sequence finds whole blocks, and its logits are equal."""
        self.needs_sharing(host.engine)
        expected = host.last_logits(longest)
        for scope in (b"a", b"", LONG_SCOPE):
            self.run(host, longest, scope)
            again = host.sequence(longest, scope=scope)
            assert host.admit(again), NOT_FOUND
            self.agree(host.prefill(again), expected)
            host.engine.release(again)

    def test_a_prefix_is_shared_with_one_that_still_runs(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Sequences that share a prefix and then differ do not affect each other."""
        self.needs_sharing(host.engine)
        self.together(host.engine.limits)
        one, other = self.answer_ids()[:2]
        answers = [one], [other], [other, one]
        expected = [host.last_logits(longest, answer) for answer in answers]
        first, second = host.sequence(longest, scope=b"a"), host.sequence(longest, scope=b"a")
        assert host.admit(first) == 0
        host.prefill(first)
        assert host.admit(second), NOT_FOUND
        host.prefill(second)
        self.agree(host.decode(second, other), expected[1])
        self.agree(host.decode(first, one), expected[0])
        host.engine.release(first)
        self._overwrite(host)
        self.agree(host.decode(second, one), expected[2])
        host.engine.release(second)

    def test_a_cached_prefix_ends_before_the_first_wanted_row(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """A cache holds no logits, so a token whose row is wanted is computed again."""
        self.needs_sharing(host.engine)
        expected = host.last_logits(longest)
        self.run(host, longest)
        for first_row in (len(longest) // 2, 0):
            sequence = host.sequence(longest, scope=b"a")
            sequence.wants_from = first_row
            assert host.admit(sequence) is not None
            self.agree(host.prefill(sequence), expected)
            host.engine.release(sequence)

    # What is not

    def test_nothing_is_found_before_it_is_computed(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """A second sequence finds what the first has committed, and no more."""
        block_tokens = self.needs_sharing(host.engine)
        self.together(host.engine.limits)
        expected = host.last_logits(longest)
        half = len(longest) // 2
        ends = {0, *range(half, half + 3), *range(half - 2, half)}
        ends |= {half - half % block_tokens + n for n in (-1, 1, block_tokens - 1)}
        for num_tokens in sorted(each for each in ends if 0 <= each < len(longest)):
            scope = b"a%d" % num_tokens
            first, second = (host.sequence(longest, scope=scope) for _ in range(2))
            assert host.admit(first) == 0
            if num_tokens:
                host.step([host.chunk(first, num_tokens)])
            num_cached = host.admit(second)
            assert num_cached is not None
            assert num_cached <= first.num_done, "what is not computed yet was found"
            self.agree(host.prefill(second), expected)
            self.agree(host.prefill(first), expected)
            self.release(host, [first, second])

    def test_uncommitted_tokens_are_never_shared(self, host: EngineHost, longest: Prompt) -> None:
        """Drafts in the cache must not be found as tokens."""
        self.needs_sharing(host.engine)
        sequence = host.sequence(longest, scope=b"a")
        assert host.admit(sequence) == 0
        while not (item := host.chunk(sequence)).num_rows:
            host.step([item], commits=False)
        host.step([item], commits=False)
        if host.engine.limits.max_sequences > 1:
            beside = host.sequence(longest, scope=b"a")
            assert host.admit(beside) == 0
            host.engine.release(beside)
        host.engine.release(sequence)
        again = host.sequence(longest, scope=b"a")
        assert host.admit(again) == 0
        host.engine.release(again)

    def test_only_accepted_drafts_are_found_in_the_cache(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Tokens overwrite the cells of rejected drafts; both prefixes give the right logits."""
        limits, block_tokens = host.engine.limits, self.needs_sharing(host.engine)
        if not limits.max_draft_tokens:
            pytest.skip("this engine does not claim to take drafts")
        num_drafts = min(limits.max_draft_tokens, 2 * block_tokens)
        token_id, *guesses = self.tokens(1 + num_drafts)
        others = [self.another(guess) for guess in guesses]
        drafted = [token_id, *guesses]
        for num_accepted in sorted({0, 1, num_drafts // 2, num_drafts}):
            said = [token_id, *guesses[:num_accepted], *others[num_accepted:]]
            scope = b"a%d" % num_accepted
            drafting = host.sequence(longest, scope=scope)
            assert host.admit(drafting) == 0
            host.prefill(drafting)
            item = host.next_item(drafting, token_id, tuple(guesses))
            host.step([item])
            host.accept(item, num_accepted)
            most = drafting.num_done
            for each in others[num_accepted:]:
                host.decode(drafting, each)
            host.engine.release(drafting)
            for path in (drafted, said):
                expected = host.last_logits(longest, path)
                later = host.sequence(longest, path, scope=scope)
                num_cached = host.admit(later)
                assert num_cached is not None
                if path is drafted:
                    assert num_cached <= most, "drafts that were refused are found"
                self.agree(host.prefill(later), expected)
                host.engine.release(later)

    def test_a_shared_block_is_never_overwritten(self, host: EngineHost, longest: Prompt) -> None:
        """Rejected drafts free only cells that no other sequence reads."""
        limits, block_tokens = host.engine.limits, self.needs_sharing(host.engine)
        if not limits.max_draft_tokens:
            pytest.skip("this engine does not claim to take drafts")
        self.together(limits)
        guesses = tuple(self.tokens(min(limits.max_draft_tokens, block_tokens)))
        for more in range(min(block_tokens, 4)):
            answer = self.tokens(more + 1)
            expected = [host.last_logits(longest, [*answer, t]) for t in self.answer_ids()[:2]]
            scope = b"w%d" % more
            first = host.sequence(longest, answer[:-1], scope=scope)
            assert host.admit(first) == 0
            host.prefill(first)
            second = host.sequence(longest, answer[:-1], scope=scope)
            assert host.admit(second) is not None
            host.prefill(second)
            item = host.next_item(second, answer[-1], guesses)
            host.step([item])
            host.accept(item, 0)
            self._overwrite(host)
            host.decode(first, answer[-1])
            self.agree(host.decode(first, self.answer_ids()[0]), expected[0])
            host.engine.release(first)
            self._overwrite(host)
            self.agree(host.decode(second, self.answer_ids()[1]), expected[1])
            host.engine.release(second)

    def test_a_prompt_shares_only_what_is_equal(self, host: EngineHost, longest: Prompt) -> None:
        """The cache is keyed by token ids, not by their number."""
        self.run(host, longest)
        inside = {i for slot in longest.media for i in range(slot.start, slot.stop)}
        places = [i for i in range(len(longest)) if i not in inside]
        for place in (places[-1], places[len(places) // 2], places[0]):
            changed = self._changed(longest, place)
            expected = host.last_logits(changed, self.tokens(1))
            sequence = host.sequence(changed, self.tokens(1), scope=b"a")
            num_cached = host.admit(sequence)
            assert num_cached is not None
            assert num_cached <= place, "a token that differs was found"
            self.agree(host.prefill(sequence), expected)
            host.engine.release(sequence)

    def test_another_scope_shares_nothing(self, host: EngineHost, longest: Prompt) -> None:
        """Clients cannot learn the prompts of others by timing, nor by using the room before."""
        before = self.fill(host, self.shortest)
        self.release(host, before)
        self.run(host, longest)
        self.run(host, longest, LONG_SCOPE)
        others = b"", b"b", b"A", b"a\0", b"aa", LONG_SCOPE[:-1], LONG_SCOPE[:-1] + b"t"
        for scope in (*others, *(sequence.scope for sequence in before)):
            sequence = host.sequence(longest, scope=scope)
            assert host.admit(sequence) == 0
            host.engine.release(sequence)

    def test_another_picture_is_not_shared(self, host: EngineHost) -> None:
        """Equal tokens with another image are another prefix, from the image on."""
        first, second = self.pictured_twins()
        expected = host.last_logits(second)
        self.run(host, first)
        sequence = host.sequence(second, scope=b"a")
        num_cached = host.admit(sequence)
        assert num_cached is not None
        assert num_cached <= second.media[0].start
        self.agree(host.prefill(sequence), expected)
        host.engine.release(sequence)

    def test_every_byte_of_a_digest_counts(self, host: EngineHost) -> None:
        """Digests of two pictures that are nearly equal are those of two pictures."""
        prompt, _ = self.pictured_twins()
        self.run(host, prompt)
        slot = prompt.media[0]
        for place in range(0, len(slot.digest), 31):
            digest = bytearray(slot.digest)
            digest[place] ^= 1
            media = (dataclasses.replace(slot, digest=bytes(digest)), *prompt.media[1:])
            sequence = host.sequence(dataclasses.replace(prompt, media=media), scope=b"a")
            num_cached = host.admit(sequence)
            assert num_cached is not None
            assert num_cached <= slot.start, f"byte {place} of a digest is ignored"
            host.engine.release(sequence)

    def test_images_in_another_order_are_not_shared(self, host: EngineHost) -> None:
        """The order of images is part of a prefix."""
        pairs = [(prompt, self._turned(prompt)) for prompt in self.asked]
        if not any(turned for _, turned in pairs):
            pytest.skip("no prompt has two pictures of one size")
        for prompt, turned in pairs:
            if turned is not None:
                expected = host.last_logits(turned)
                self.run(host, prompt)
                sequence = host.sequence(turned, scope=b"a")
                assert host.admit(sequence) is not None
                self.agree(host.prefill(sequence), expected)
                host.engine.release(sequence)

    def test_an_evicted_prefix_is_no_longer_found(self, host: EngineHost, longest: Prompt) -> None:
        """A prefix stays until its blocks are needed, and is not found afterwards."""
        self.needs_sharing(host.engine)
        expected = host.last_logits(longest)
        for _ in range(2):
            self.run(host, longest)
            self._overwrite(host)
            sequence = host.sequence(longest, scope=b"a")
            assert host.admit(sequence) is not None
            self.agree(host.prefill(sequence), expected)
            host.engine.release(sequence)

    def test_an_answer_that_grew_into_evicted_blocks_is_found_there(self, host: EngineHost) -> None:
        """Blocks that it reserved and committed hold its own tokens, not those of an old prompt."""
        self.needs_sharing(host.engine)
        for prompt in self.asked:
            self.run(host, prompt)
        grown = []
        for number in range(min(host.engine.limits.max_sequences, MAX_GROWN)):
            sequence = host.sequence(self.shortest, scope=b"grown %d" % number)
            if host.admit(sequence) is None:
                break
            host.prefill(sequence)
            grown.append((sequence, self._grow(host, sequence)))
        self.release(host, [sequence for sequence, _ in grown])
        for sequence, row in grown:
            again = host.sequence(sequence.prompt, sequence.answer, scope=sequence.scope)
            assert host.admit(again) is not None
            self.agree(host.prefill(again), row)
            host.engine.release(again)

    # Helpers

    def _grow(self, host: EngineHost, sequence: EngineSequence) -> Row:
        """Let an answer grow as far as there is room; return the logits of its last token.

        It could have one more token, so it can be admitted again.
        """
        longest = min(host.engine.limits.max_sequence_tokens, self.most_tokens)
        more = self.tokens(longest - 1 - len(sequence))
        while not host.engine.reserve(sequence, len(sequence) + len(more)):
            more.pop()
        sequence.answer += more
        return host.prefill(sequence)

    def _overwrite(self, host: EngineHost) -> None:
        """Fill the free cache with other sequences, and release them."""
        others: list[EngineSequence] = []
        num_tokens = 0
        prompts = sorted(self.asked, key=len)
        while prompts and num_tokens < self.most_tokens:
            other = host.sequence(prompts[-1])
            if host.admit(other) is None:
                prompts.pop()
                continue
            others.append(other)
            host.prefill(other)
            num_tokens += len(other)
        self.release(host, others)

    def _changed(self, prompt: Prompt, place: int) -> Prompt:
        """Return a prompt with another token at an index."""
        ids = list(prompt.token_ids)
        ids[place] = self.another(ids[place])
        return dataclasses.replace(prompt, token_ids=tuple(ids))

    def _turned(self, prompt: Prompt) -> Prompt | None:
        """Return a prompt with its first two images exchanged; None without two of one size."""
        first, second = (*prompt.media, None, None)[:2]
        if first is None or second is None or not _is_alike(first, second):
            return None
        turned = tuple(
            dataclasses.replace(other, start=slot.start, stop=slot.stop)
            for slot, other in ((first, second), (second, first))
        )
        return dataclasses.replace(prompt, media=(*turned, *prompt.media[2:]))


def _is_alike(first: MediaSlot, second: MediaSlot) -> bool:
    """Return whether two media differ in their content alone."""
    return first.digest != second.digest and _size(first) == _size(second)


def _size(slot: MediaSlot) -> tuple[object, ...]:
    shapes = {name: array.shape for name, array in slot.inputs.items()}
    return slot.stop - slot.start, slot.num_features, slot.num_encoded, slot.kind, shapes
