"""What an engine must do about cache capacity: count it right, and have what its limits state."""

from collections.abc import Iterable, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice, product

import pytest

from vlmkit.interfaces.engine import CountsRoom, EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

MAX_CHUNKS = 8  # of one step
NUM_RESERVATIONS = 6  # of the same tokens
NUM_ENDINGS = 45  # more than a step of a usual batch size, and no multiple of a power of two


class EngineRoomContract(EngineSubject):
    """Each limit at its bound and beyond, and capacity that is freed."""

    # Sequences

    def test_all_room_comes_back(self, host: EngineHost) -> None:
        """Admit until the answer is None, release all, and the same number fits again."""
        limits, found = host.engine.limits, []
        longest = min(limits.max_sequence_tokens, self.most_tokens)
        num_each = min(longest - 4, limits.capacity_tokens // limits.max_sequences + 1)
        for num_tokens in 2 * (len(self.shortest), max(len(self.shortest), num_each)):
            admitted = self.fill(host, self.shortest, self.grown(self.shortest, num_tokens))
            last = admitted[-1]
            reserved = [n for n in range(longest + 1) if host.engine.reserve(last, n)]
            found.append((len(admitted), reserved[-1]))
            if host.engine.reserve(admitted[0], len(admitted[0]) + 4):
                host.prefill(admitted[0])
            self.release(host, admitted)
        assert found[:2] == found[2:], "release() did not give all room back"

    def test_all_admitted_sequences_run_together(self, host: EngineHost) -> None:
        """Each with its own answer, in any order, and there are as many slots as the limits state.

        Neighbours in a step have different rows, and so have items that are 2, 4, 8 ... apart.
        """
        limits, endings = host.engine.limits, self._endings()
        admitted = self.fill(host, self.shortest)
        room = 2 * (len(self.shortest) + 1) + limits.prefix_block_tokens
        if limits.max_sequences * room <= limits.capacity_tokens:
            assert len(admitted) == limits.max_sequences, "fewer fit than limits.max_sequences"
        for sequence in admitted:
            host.prefill(sequence)
        grown = {id(each): ending for each, ending in zip(admitted, cycle(endings), strict=False)}
        for place in range(len(endings[0])):
            admitted.reverse()
            rows = host.step([host.next_item(s, grown[id(s)][place]) for s in admitted])
        found = {grown[id(each)]: row for each, row in zip(admitted, rows, strict=True)}
        wanted = [found[grown[id(each)]] for each in admitted]
        self.release(host, admitted)
        for row, equal in zip(rows, wanted, strict=True):
            self.agree(row, equal)
        for ending, row in found.items():
            self.agree(row, host.last_logits(self.shortest, ending))

    def test_a_full_engine_still_runs_what_it_admitted(self, host: EngineHost) -> None:
        """A refused admission changes nothing for admitted sequences."""
        expected, token_id = host.last_logits(self.shortest), self.answer_ids()[0]
        decoded = host.last_logits(self.shortest, [token_id])
        admitted = self.fill(host, self.shortest)
        host.prefill(admitted[0])
        for _ in range(3):
            assert host.admit(host.sequence(self.shortest)) is None
        self.agree(host.decode(admitted[0], token_id), decoded)
        if len(admitted) > 1:
            self.agree(host.prefill(admitted[-1]), expected)
        host.engine.release(admitted.pop())
        admitted.append(self.admitted(host, self.shortest))
        self.agree(host.prefill(admitted[-1]), expected)
        self.release(host, admitted)

    def test_an_admitted_sequence_has_room_for_one_more_token(self, host: EngineHost) -> None:
        """Wherever its prompt ends in a block, and whatever others reserved since."""
        limits = host.engine.limits
        self.together(limits)
        longest = min(limits.max_sequence_tokens, self.most_tokens)
        for num_more in range(max(limits.prefix_block_tokens, 4)):
            admitted = self.fill(host, self.shortest, self.tokens(num_more))
            growing = ((each, n) for each in admitted[:0:-1] for n in range(longest + 1))
            while (grown := next(growing, None)) and host.engine.reserve(*grown):
                pass
            assert host.engine.reserve(admitted[0], len(admitted[0]) + 1)
            self.release(host, admitted)

    def test_releasing_one_leaves_the_others_alone(self, host: EngineHost) -> None:
        """Freed and reused blocks belong to one sequence alone."""
        first, second = self.together(host.engine.limits)[:2]
        token_id = self.answer_ids()[0]
        expected = host.last_logits(second, [token_id])
        leaving, staying = self.admitted(host, first), self.admitted(host, second)
        host.prefill(leaving)
        host.prefill(staying)
        host.engine.release(leaving)
        coming = self.admitted(host, first)
        host.prefill(coming)
        self.agree(host.decode(staying, token_id), expected)
        self.release(host, [staying, coming])

    def test_a_preempted_sequence_goes_on_where_it_was(self, host: EngineHost) -> None:
        """It is released, admitted again with its answer so far, and computed again."""
        prompt, answer = self.asked[0], self.answer_ids()
        expected = host.last_logits(prompt, answer)
        sequence = self.admitted(host, prompt)
        host.prefill(sequence)
        for token_id in answer:
            host.decode(sequence, token_id)
        host.engine.release(sequence)
        assert host.admit(sequence) is not None
        self.agree(host.prefill(sequence), expected)
        host.engine.release(sequence)

    # Tokens

    def test_room_beyond_the_capacity_is_refused(self, host: EngineHost) -> None:
        """A refused reservation changes nothing, for others neither."""
        prompt, token_id = self.asked[0], self.answer_ids()[0]
        expected = host.last_logits(prompt, [token_id])
        sequence = self.admitted(host, prompt)
        host.prefill(sequence)
        counts = []
        for _ in range(2):
            others = []
            while host.admit(other := host.sequence(self.shortest)) is not None:
                others.append(other)
            counts.append(len(others))
            self.release(host, others)
            assert not host.engine.reserve(sequence, host.engine.limits.capacity_tokens + 1)
        assert counts[0] == counts[1], "what was refused took room"
        self.agree(host.decode(sequence, token_id), expected)
        host.engine.release(sequence)

    def test_a_refused_reservation_takes_no_room(self, host: EngineHost) -> None:
        """Not even the part of it that is left: other sequences can grow as far as before."""
        granted: list[bool] = []
        found = self._growth(host, granted, is_first=True)
        if all(granted):
            pytest.skip("this cache has room for as many longest sequences as fit at all")
        assert self._growth(host, granted, is_first=False) == found, "what was refused took room"

    def test_a_refused_admission_takes_no_room_and_evicts_nothing(self, host: EngineHost) -> None:
        """Neither of a new prompt nor of one whose beginning is cached: it is asked each step."""
        other = self.make()
        try:
            expected = self._left(EngineHost(other, self.features), is_asking=False)
        finally:
            other.close()
        assert self._left(host, is_asking=True) == expected, "a refused sequence changes the cache"

    def test_a_refused_sequence_gives_its_prefix_to_no_other(self, host: EngineHost) -> None:
        """What was found for it is not used for the next sequence, which has room."""
        block_tokens = self.needs_sharing(host.engine)
        if host.engine.limits.max_sequences < 3:
            pytest.skip("this engine has no room for three of its sequences")
        prompt = min((each for each in self.asked if len(each) > 2 * block_tokens), key=len)
        expected = host.last_logits(prompt)
        assert self.run(host, prompt, b"kept") == 0
        holding = self._all_but_a_longest(host)
        asking = host.sequence(prompt, self.grown(prompt, self._longest(host) - 1), scope=b"kept")
        if host.admit(asking) is not None:
            pytest.skip("this cache has room for as many longest sequences as fit")
        other = self.admitted(host, prompt)
        self.agree(host.prefill(other), expected)
        host.engine.release(other)
        again = host.sequence(prompt, scope=other.scope)
        assert host.admit(again) is not None
        self.agree(host.prefill(again), expected)
        self.release(host, [again, *holding])

    def test_reserving_reserved_tokens_changes_nothing(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """A scheduler reserves chunk by chunk, and may repeat a reservation."""
        expected = host.last_logits(longest)
        sequence = self.admitted(host, longest)
        for num_tokens in (1, len(longest) // 2, 1):
            assert host.engine.reserve(sequence, num_tokens)
        self.agree(host.prefill(sequence), expected)
        host.engine.release(sequence)
        self.together(host.engine.limits)
        before = self._room_beside(host, longest, ())
        sizes = [1, len(longest), len(longest) + 1] * NUM_RESERVATIONS
        assert self._room_beside(host, longest, sizes) == before, "a reservation is repeated"

    def test_the_longest_chunk_is_computed_as_shorter_ones(self, host: EngineHost) -> None:
        """``max_chunk_tokens`` of one sequence, in one work item."""
        limits = host.engine.limits
        num_tokens = self._num_tried(limits)
        chunk_tokens = min(limits.max_chunk_tokens, num_tokens)
        answer = self.grown(self.shortest, num_tokens)
        expected = host.last_logits(self.shortest, answer, chunk_tokens=max(1, chunk_tokens // 3))
        row = host.last_logits(self.shortest, answer, chunk_tokens=chunk_tokens)
        self.agree(row, expected)

    def test_every_item_of_a_step_may_be_a_longest_chunk(self, host: EngineHost) -> None:
        """``max_chunk_tokens`` hold for each sequence, not for the step."""
        limits = host.engine.limits
        if not limits.mixes_prefill_and_decode:
            pytest.skip("this engine computes one chunk in a step")
        self.together(limits)
        chunk_tokens = min(limits.max_chunk_tokens, self._num_tried(limits))
        num_tokens = max(chunk_tokens, len(self.shortest) + 1)
        sequences: list[EngineSequence] = []
        for number in range(min(MAX_CHUNKS, max(2, self.most_tokens // chunk_tokens))):
            answer = self.grown(self.shortest, num_tokens + number)[number:]
            sequence = host.sequence(self.shortest, answer)
            if host.admit(sequence) is None:
                break
            while num_left := num_tokens - chunk_tokens - sequence.num_done:
                host.step([host.chunk(sequence, num_left)])
            sequences.append(sequence)
        rows = host.step([host.chunk(sequence, chunk_tokens) for sequence in sequences])
        self.release(host, sequences)
        for sequence, row in zip(sequences, rows, strict=True):
            self.agree(row, host.last_logits(self.shortest, sequence.answer))

    def test_a_sequence_grows_to_the_longest_that_is_claimed(self, host: EngineHost) -> None:
        """``max_sequence_tokens`` of prompt and answer give the logits of one whole prompt."""
        num_tokens = self._num_tried(host.engine.limits)
        answer = self.grown(self.shortest, num_tokens)
        few = max(1, len(answer) - 3)
        expected = [host.last_logits(self.shortest, answer[:n]) for n in range(few, len(answer))]
        sequence = self.admitted(host, self.shortest, answer[: few - 1])
        host.prefill(sequence)
        for token_id, row in zip(answer[few - 1 :], expected, strict=False):
            self.agree(host.decode(sequence, token_id), row)
        assert host.engine.reserve(sequence, num_tokens + 1), "it may have max_sequence_tokens"
        host.engine.release(sequence)

    def test_the_cache_holds_what_is_claimed(self, host: EngineHost) -> None:
        """As many of the longest sequences as ``capacity_tokens`` holds, minus one.

        The one covers what is lost in partly filled blocks.
        """
        limits = host.engine.limits
        num_tokens = self._num_tried(limits)
        taken = num_tokens + 1 + limits.prefix_block_tokens
        num_promised = min(limits.max_sequences, max(1, limits.capacity_tokens // taken - 1), 16)
        answer = self.grown(self.shortest, num_tokens)
        expected = host.last_logits(self.shortest, answer)
        admitted: list[EngineSequence] = []
        for _ in range(num_promised):
            admitted.append(self.admitted(host, self.shortest, answer))
            assert host.engine.reserve(admitted[-1], num_tokens + 1)
        rows = [host.prefill(sequence) for sequence in admitted[:: max(1, len(admitted) - 1)]]
        for row in rows:
            self.agree(row, expected)
        self.release(host, admitted)

    def test_free_room_is_counted(self, host: EngineHost) -> None:
        """``num_free_tokens``, in any thread; it is the whole capacity of an idle engine."""
        engine = host.engine
        if not isinstance(engine, CountsRoom):
            pytest.skip("this engine does not count its room")

        def asked() -> int:
            with ThreadPoolExecutor(1) as other:
                return other.submit(lambda: engine.num_free_tokens).result()

        capacity = engine.limits.capacity_tokens
        assert asked() == capacity
        sequence = host.sequence(self.shortest, scope=b"a")
        assert host.admit(sequence) == 0
        least = asked()
        assert 0 <= least <= capacity - len(sequence) - 1
        host.prefill(sequence)
        for token_id in self.tokens(6):
            host.decode(sequence, token_id)
            assert 0 <= asked() <= min(least, capacity - len(sequence))
        host.engine.release(sequence)
        assert asked() == capacity, "what is kept for later is free"
        again = host.sequence(self.shortest, scope=b"a")
        assert host.admit(again) is not None
        assert asked() <= capacity - len(again) - 1
        host.engine.release(again)
        assert asked() == capacity

    def test_free_room_counts_shared_tokens_as_admit_takes_them(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Once, or once for each sequence if each has a copy; and the cache is full when it is 0.

        Of two sequences that share a prefix, either may be released first.
        """
        engine, block_tokens = host.engine, self.needs_sharing(host.engine)
        self.together(engine.limits)
        if not isinstance(engine, CountsRoom):
            pytest.skip("this engine does not count its room")
        capacity = engine.limits.capacity_tokens
        first = host.sequence(longest, scope=b"a")
        assert host.admit(first) == 0
        num_alone = capacity - engine.num_free_tokens
        host.prefill(first)
        second = host.sequence(longest, scope=b"a")
        before, num_cached = engine.num_free_tokens, host.admit(second)
        assert num_cached, "nothing is found of a prompt that was computed before"
        num_taken = before - engine.num_free_tokens
        assert num_taken in (num_alone - num_cached, num_alone), "shared tokens count once"
        host.engine.release(first)
        assert engine.num_free_tokens == capacity - num_alone, "the other sequence has the prefix"
        admitted = [second, *self._holders(host, num_alone)]
        while len(admitted) < engine.limits.max_sequences:
            before = engine.num_free_tokens
            if host.admit(another := host.sequence(longest, scope=b"a")) is None:
                assert before < num_taken + block_tokens, "a sequence is refused although it fits"
                break
            admitted.append(another)
            assert before - engine.num_free_tokens == num_taken, "each takes as much as the second"
            assert engine.num_free_tokens >= 0
        self.release(host, admitted)
        assert engine.num_free_tokens == capacity

    # Helpers

    def _holders(self, host: EngineHost, num_left: int) -> list[EngineSequence]:
        """Return sequences that hold all room but about a number of tokens, as far as they can."""
        engine, holders, longest = host.engine, list[EngineSequence](), self._longest(host)
        assert isinstance(engine, CountsRoom)
        while len(holders) < engine.limits.max_sequences - 4:
            holder = host.sequence(self.shortest)
            if engine.num_free_tokens < 2 * num_left or host.admit(holder) is None:
                break
            holders.append(holder)
            num_tokens = min(longest, len(holder) + engine.num_free_tokens - num_left)
            assert engine.reserve(holder, num_tokens), "num_free_tokens are not free"
        return holders

    def _left(self, host: EngineHost, *, is_asking: bool) -> tuple[int | None, list[int]]:
        """Return what is cached of a prompt beside others, and how far these may grow.

        Args:
            host: the engine under test.
            is_asking: whether sequences ask before for more room than is left.
        """
        most, prompt = self._longest(host), max(self.asked, key=len)
        assert self.run(host, prompt, b"kept") == 0
        holding = self._all_but_a_longest(host)
        for kept in (prompt, self.shortest) if is_asking else ():
            asking = host.sequence(kept, self.grown(kept, most - 1), scope=b"kept")
            for _ in range(3):
                if host.admit(asking) is not None:
                    pytest.skip("this cache has room for as many longest sequences as fit")
        again = host.sequence(prompt, scope=b"kept")
        if (num_cached := host.admit(again)) is not None:
            host.engine.release(again)
        others = self.fill(host, self.shortest)
        grown = self._growing(host, others)
        self.release(host, [*holding, *others])
        return num_cached, grown

    def _all_but_a_longest(self, host: EngineHost) -> list[EngineSequence]:
        """Admit sequences that leave room, but none for a longest one."""
        most = self._longest(host)
        holding: list[EngineSequence] = []
        left = host.engine.limits.capacity_tokens - 3 * most // 4
        while left > len(self.shortest) and len(holding) < host.engine.limits.max_sequences - 1:
            holder = host.sequence(self.shortest, self.grown(self.shortest, min(most, left) - 1))
            if host.admit(holder) is None:
                break
            holding.append(holder)
            left -= most
        return holding

    def _room_beside(self, host: EngineHost, prompt: Prompt, sizes: Iterable[int]) -> list[int]:
        """Return how far sequences may grow beside one with some reservations."""
        sequence = self.admitted(host, prompt)
        for num_tokens in sizes:
            assert host.engine.reserve(sequence, num_tokens)
        others = self.fill(host, self.shortest)
        grown = self._growing(host, others)
        self.release(host, [sequence, *others])
        return grown

    def _growing(self, host: EngineHost, sequences: Seq[EngineSequence]) -> list[int]:
        """Let sequences grow until one may not; return how long each became."""
        longest, grown = self._longest(host), list[int]()
        for each in sequences:
            grown.append(max(n for n in range(longest + 1) if host.engine.reserve(each, n)))
            if grown[-1] < longest:
                break
        return grown

    def _endings(self) -> list[tuple[int, ...]]:
        """Return different answers of equal length, whose number is odd."""
        token_ids = sorted(set(self.answer_ids()))
        length = next(n for n in range(1, 7) if len(token_ids) ** n > NUM_ENDINGS or n == 6)
        found = list(islice(product(token_ids, repeat=length), NUM_ENDINGS))
        return found if len(found) % 2 else found[:-1]

    def _growth(self, host: EngineHost, granted: list[bool], *, is_first: bool) -> list[int]:
        """Return how many tokens sequences can reserve, while others ask for too much.

        Those ask until one is refused, each time before another sequence grows.

        Args:
            host: the engine under test.
            granted: whether each request was granted; a first run fills it, and a second one
                repeats those alone that were granted.
            is_first: whether this is the first run.
        """
        longest, admitted, found = self._longest(host), self.fill(host, self.shortest), []
        asking, known = 0, iter(tuple(granted))

        def is_granted() -> bool:
            if is_first:
                granted.append(host.engine.reserve(admitted[asking], longest))
                return granted[-1]
            return next(known) and host.engine.reserve(admitted[asking], longest)

        if len(admitted) > 2:
            host.engine.release(admitted.pop())  # what is left is less than the request
        for each in admitted[:0:-1]:
            while admitted[asking] is not each and is_granted():
                asking += 1
            if admitted[asking] is each:
                break
            found.append(max(n for n in range(longest + 1) if host.engine.reserve(each, n)))
        self.release(host, admitted)
        return found

    def _longest(self, host: EngineHost) -> int:
        """Return the tokens of the longest sequence that is tried."""
        return min(host.engine.limits.max_sequence_tokens, self.most_tokens)

    def _num_tried(self, limits: EngineLimits) -> int:
        """Return how many tokens the longest sequence has that is tried, and one more has room."""
        return min(limits.max_sequence_tokens, self.most_tokens) - 1
