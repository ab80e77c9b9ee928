"""The block pool: it counts the owners of each block, and shares only equal prefixes."""

import hashlib

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.block_pool import BlockPool
from vlmkit.types.sampling import SamplingParams


def sequence(token_ids, images=(), **fields):
    prompt = Prompt(tuple(token_ids), tuple(images))
    return Sequence(
        id="s", prompt=prompt, params=SamplingParams(), seed=0, max_tokens=100, **fields
    )


def slot(start, stop, digest=b"a"):
    return MediaSlot(start, stop, digest * 32, {}, stop - start)


def admitted_cached_tokens(pool, seq):
    """Admit a sequence; return its number of cached tokens, or None without room."""
    admission = pool.admit(seq)
    return None if admission is None else admission.num_cached


def admit_and_compute(pool, seq):
    """Admit a sequence and compute all of it."""
    cached = admitted_cached_tokens(pool, seq)
    pool.commit(seq, len(seq))
    return cached


def test_an_equal_prompt_reuses_the_full_blocks_of_the_first():
    pool = BlockPool(32, 4)
    assert admit_and_compute(pool, sequence(range(11))) == 0
    assert admitted_cached_tokens(pool, sequence(range(11))) == 8


def test_the_last_token_of_a_cached_prompt_is_always_computed():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence(range(8)))
    assert admitted_cached_tokens(pool, sequence(range(8))) == 4


def test_an_engine_may_use_fewer_cached_tokens_rounded_down_to_whole_blocks():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence(range(19)))
    requested = []

    def usable(num_tokens):
        requested.append(num_tokens)
        return {16: 14, 12: 5, 4: 4}[num_tokens]

    assert pool.admit(sequence(range(19)), usable).num_cached == 4
    assert requested == [16, 12, 4]
    assert pool.admit(sequence(range(19)), lambda num: num).num_cached == 16


def test_blocks_without_computed_tokens_are_not_shared():
    pool = BlockPool(32, 4)
    first = sequence(range(11))
    admitted_cached_tokens(pool, first)
    pool.commit(first, 4)
    assert admitted_cached_tokens(pool, sequence(range(11))) == 4


def test_tokens_that_the_plan_of_a_prompt_withholds_are_not_shared():
    pool, plan = BlockPool(64, 4), PromptPlan(max_shared_tokens=10)
    admit_and_compute(pool, sequence(range(19), plan=plan))
    assert admitted_cached_tokens(pool, sequence(range(19))) == 8
    admit_and_compute(pool, sequence(range(30, 49)))
    assert admitted_cached_tokens(pool, sequence(range(30, 49), plan=plan)) == 8
    pool.check_integrity()


def test_a_block_is_reused_only_behind_an_equal_prefix():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence([1, 1, 1, 1, 5, 5, 5, 5, 9]))
    assert admitted_cached_tokens(pool, sequence([2, 2, 2, 2, 5, 5, 5, 5, 9])) == 0


def test_a_sequence_that_waits_for_blocks_is_hashed_once(monkeypatch):
    hashed, really_hash = [], hashlib.sha256
    pool = BlockPool(32, 4)
    first = sequence(range(100))
    admit_and_compute(pool, first)
    waiting = sequence(range(124))

    def counting_keys(*arguments):
        hashed.append(1)
        return really_hash(*arguments)

    monkeypatch.setattr(hashlib, "sha256", counting_keys)
    for _ in range(5):
        assert admitted_cached_tokens(pool, waiting) is None
    assert len(hashed) < 40
    pool.release(first)
    assert admitted_cached_tokens(pool, waiting) == 100
    assert pool._refused is None


def test_a_sequence_that_grew_after_a_refused_admission_finds_its_own_blocks():
    pool = BlockPool(4, 4)
    hog = sequence([7])
    admitted_cached_tokens(pool, hog)
    pool.reserve(hog, 12)
    growing = sequence(range(6))
    assert admitted_cached_tokens(pool, growing) is None
    growing.output_ids += [6, 7, 8]
    assert admitted_cached_tokens(pool, growing) is None
    pool.release(hog)
    admit_and_compute(pool, growing)
    assert admitted_cached_tokens(pool, sequence(range(7))) == 4
    pool.release(growing)
    assert admitted_cached_tokens(pool, sequence(range(9))) == 8


def test_sequences_of_different_scopes_share_no_blocks():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence(range(11), scope=b"alice"))
    assert admitted_cached_tokens(pool, sequence(range(11), scope=b"bob")) == 0


def test_equal_placeholders_of_different_images_are_different_prefixes():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence([7] * 11, images=[slot(0, 6, b"a")]))
    assert admitted_cached_tokens(pool, sequence([7] * 11, images=[slot(0, 6, b"b")])) == 0
    assert admitted_cached_tokens(pool, sequence([7] * 11, images=[slot(0, 6, b"a")])) == 8


def test_a_cached_prefix_never_ends_inside_an_atomic_span():
    pool = BlockPool(32, 4)
    span = PromptPlan((Span(6, 14),))
    admit_and_compute(pool, sequence(range(16), plan=span))
    # The second prompt differs from the first inside the span.
    other = sequence([*range(12), 99, 98, 97, 96], plan=span)
    assert admitted_cached_tokens(pool, other) == 4


def test_tokens_computed_within_another_atomic_span_are_not_shared():
    pool = BlockPool(32, 4)
    admit_and_compute(pool, sequence(range(16), plan=PromptPlan((Span(0, 16),))))
    # The second prompt ends within the first, and its answer continues with the same tokens.
    other = sequence(range(8), plan=PromptPlan((Span(0, 8),)))
    other.output_ids += range(8, 14)
    assert admitted_cached_tokens(pool, other) == 0


def test_prompts_with_different_atomic_spans_share_no_blocks_of_their_answers():
    pool = BlockPool(32, 4)
    span, answer = PromptPlan((Span(0, 8),)), range(40, 46)
    first = sequence([*range(4), 1, 2, 3, 4, *answer], plan=span)
    admit_and_compute(pool, first)
    # Its span begins with the same tokens and ends with others. The answer follows the span.
    other = sequence([*range(4), 5, 6, 7, 8, *answer], plan=span)
    admit_and_compute(pool, other)
    pool.release(other)
    assert admitted_cached_tokens(pool, other) == 12
    assert not set(pool.blocks(other)) & set(pool.blocks(first))


def test_a_released_block_keeps_its_content_until_its_room_is_needed():
    pool = BlockPool(4, 4)
    first = sequence(range(11))
    admit_and_compute(pool, first)
    pool.release(first)
    assert pool.num_free_blocks == 4
    again = sequence(range(11))
    assert admitted_cached_tokens(pool, again) == 8
    pool.release(again)
    crowd = sequence(range(100, 115))
    assert admitted_cached_tokens(pool, crowd) == 0
    pool.release(crowd)
    assert admitted_cached_tokens(pool, sequence(range(11))) == 0


def test_committed_tokens_cannot_be_truncated():
    pool = BlockPool(32, 4)
    seq = sequence(range(11))
    admit_and_compute(pool, seq)
    with pytest.raises(ValueError, match="more committed than 6"):
        pool.truncate(seq, 6)
    pool.check_integrity()


def test_rejected_drafts_release_their_blocks():
    pool = BlockPool(32, 4)
    seq = sequence(range(10))
    admit_and_compute(pool, seq)
    pool.reserve(seq, 18)
    assert len(pool.blocks(seq)) == 5
    pool.truncate(seq, 11)
    assert len(pool.blocks(seq)) == 3
    pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Random admissions, growth and releases of sequences."""

    admitted = Bundle("admitted")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(12, 4)
        self.live = set()

    @rule(
        target=admitted,
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        scope=st.sampled_from([b"", b"t"]),
    )
    def admit(self, tokens, scope):
        seq = sequence(tokens, scope=scope)
        free = self.pool.num_free_blocks
        cached = admitted_cached_tokens(self.pool, seq)
        if cached is None:
            assert -(-(len(seq) + 1) // 4) > free - 12 or self.pool.num_free_blocks == free
        else:
            assert cached < len(seq)
            assert cached % 4 == 0
            assert len(self.pool.blocks(seq)) == -(-(len(seq) + 1) // 4)
            self.live.add(seq)
        return seq

    @rule(seq=admitted, num=st.integers(0, 40))
    def compute(self, seq, num):
        if seq in self.live:
            self.pool.commit(seq, min(num, len(seq)))

    @rule(seq=admitted, token=st.integers(0, 1))
    def grow(self, seq, token):
        if seq in self.live and self.pool.reserve(seq, len(seq) + 1):
            seq.output_ids.append(token)
            assert len(self.pool.blocks(seq)) * 4 >= len(seq)

    @rule(seq=admitted)
    def release(self, seq):
        if seq in self.live:
            self.live.discard(seq)
            self.pool.release(seq)

    @rule(seq=admitted, num_drafts=st.integers(1, 9), num_kept=st.integers(0, 9))
    def draft(self, seq, num_drafts, num_kept):
        if seq in self.live and self.pool.reserve(seq, len(seq) + num_drafts):
            self.pool.truncate(seq, len(seq) + min(num_kept, num_drafts))
            assert len(self.pool.blocks(seq)) == -(-(len(seq) + min(num_kept, num_drafts)) // 4)

    @invariant()
    def every_block_is_accounted_for(self):
        self.pool.check_integrity()

    def teardown(self):
        for seq in self.live:
            self.pool.release(seq)
        assert self.pool.num_free_blocks == 12


TestTraffic = PoolMachine.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40)


@given(
    first=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    second=st.lists(st.integers(0, 2), min_size=1, max_size=40),
)
def test_two_sequences_share_exactly_their_common_full_blocks(first, second):
    pool = BlockPool(64, 4)
    admit_and_compute(pool, sequence(first))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    full = min(common // 4 * 4, len(first) // 4 * 4, (len(second) - 1) // 4 * 4)
    assert admitted_cached_tokens(pool, sequence(second)) == full


def test_a_cached_block_is_one_that_no_sequence_uses_and_others_can_find():
    pool, first = BlockPool(8, 4), sequence(range(11))
    admit_and_compute(pool, first)
    blocks = list(pool.blocks(first))
    assert not any(map(pool.is_cached, range(8))), "a sequence uses them"
    pool.release(first)
    assert [pool.is_cached(block) for block in blocks] == [True, True, False]
    assert admitted_cached_tokens(pool, sequence(range(11))) == 8
    assert not any(map(pool.is_cached, blocks))


def test_a_forgotten_block_is_found_no_more_and_reused_first():
    pool, first = BlockPool(8, 4), sequence(range(11))
    removed = []
    pool.listener = Listener(removed)
    admit_and_compute(pool, first)
    head = pool.blocks(first)[0]
    pool.release(first)
    pool.forget(head)
    assert len(removed) == 1
    pool.check_integrity()
    second = sequence(range(11))
    assert admitted_cached_tokens(pool, second) == 0
    assert pool.blocks(second)[0] == head


def test_a_block_in_use_or_without_content_cannot_be_forgotten():
    pool, first = BlockPool(8, 4), sequence(range(11))
    admit_and_compute(pool, first)
    for block in (pool.blocks(first)[0], 7):
        with pytest.raises(ValueError, match=f"block {block} is not cached"):
            pool.forget(block)


class Listener:
    """Records keys of removed blocks."""

    def __init__(self, removed):
        self._removed = removed

    def stored(self, block):
        pass

    def removed(self, key):
        self._removed.append(key)
