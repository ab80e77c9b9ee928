"""The slot manager: reported prefixes are really stored, and no slot has two owners."""

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.cache_index import CacheIndex
from vlmkit.running.observers.cache_feed import CacheFeed
from vlmkit.types.sampling import SamplingParams
from vlmkit_onnx.slots.slot_manager import SlotManager

IMAGE = 9


def sequence(ids, images=(), scope=b"", spans=(), name="s"):
    slots = tuple(
        MediaSlot(start, stop, digest, {}, stop - start) for start, stop, digest in images
    )
    prompt = Prompt(tuple(ids), slots)
    made = Sequence(name, prompt, SamplingParams(), seed=0, max_tokens=64, scope=scope)
    made.plan = PromptPlan(tuple(Span(*span) for span in spans))
    return made


def computed(slots, made, num_tokens):
    """Compute and commit the first tokens of a sequence."""
    slots.set_computed(made, num_tokens)
    slots.commit(made, num_tokens)


def finished(slots, ids, **more):
    """Compute the whole prompt of a sequence and release it."""
    made = sequence(ids, **more)
    admission = slots.admit(made)
    computed(slots, made, len(ids))
    slots.release(made)
    return admission.slot


def test_a_prompt_with_the_prefix_of_a_finished_one_starts_from_its_tokens():
    slots = SlotManager(2, 64, 128)
    slot = finished(slots, range(1, 9))
    admission = slots.admit(sequence([*range(1, 9), 20]))
    assert admission == (slot, 8, None, False)


def test_the_last_token_is_always_computed_again():
    slots = SlotManager(2, 64, 128)
    finished(slots, range(1, 9))
    assert slots.admit(sequence(range(1, 9))).num_cached == 7


def test_another_scope_starts_from_nothing():
    slots = SlotManager(2, 64, 128)
    finished(slots, range(1, 9), scope=b"a")
    assert slots.admit(sequence(range(1, 9), scope=b"b")).num_cached == 0


def test_an_image_counts_by_its_digest():
    slots = SlotManager(4, 64, 256)
    ids = [1, 2, IMAGE, IMAGE, IMAGE, 3, 4]
    finished(slots, ids, images=[(2, 5, b"red")])
    assert slots.admit(sequence(ids, images=[(2, 5, b"blue")])).num_cached == 2
    assert slots.admit(sequence(ids, images=[(2, 5, b"red")])).num_cached == 6


def test_placeholders_without_an_image_are_not_those_of_one():
    slots = SlotManager(4, 64, 256)
    ids = [1, 2, IMAGE, IMAGE, IMAGE, 3, 4]
    finished(slots, ids, images=[(2, 5, b"red")])
    assert slots.admit(sequence(ids)).num_cached == 2


def test_a_prefix_never_ends_inside_a_span():
    slots = SlotManager(2, 64, 128)
    finished(slots, [1, 2, 3, 4, 5, 6])
    assert slots.admit(sequence([1, 2, 3, 4, 7, 8], spans=[(2, 5)])).num_cached == 2


def test_tokens_of_another_bidirectional_range_are_no_prefix():
    slots = SlotManager(2, 64, 128)
    finished(slots, range(12), spans=[(0, 12)])
    # A prompt that is a prefix of the first; its answer continues with the same tokens.
    other = sequence(range(8), spans=[(0, 8)], name="other")
    other.output_ids += [8, 9, 10]
    assert slots.admit(other).num_cached == 0


def test_a_prefix_of_a_running_sequence_is_copied_from_its_slot():
    slots = SlotManager(2, 64, 128)
    running = sequence(range(10))
    first = slots.admit(running)
    computed(slots, running, 6)
    second = slots.admit(sequence(range(10)))
    assert (second.source, second.num_cached) == (first.slot, 6)
    assert second.slot != first.slot


def test_draft_tokens_are_never_shared():
    slots = SlotManager(2, 64, 128)
    running = sequence(range(6))
    slots.admit(running)
    computed(slots, running, 6)
    slots.set_computed(running, 9)
    slots.release(running)
    assert slots.admit(sequence([*range(6), 0, 0, 0, 7])).num_cached == 6


def test_committed_tokens_cannot_be_truncated():
    slots = SlotManager(2, 64, 128)
    running = sequence(range(6))
    slots.admit(running)
    computed(slots, running, 6)
    with pytest.raises(ValueError, match="more committed than 5"):
        slots.truncate(running, 5)


def test_a_short_common_prefix_does_not_overwrite_a_long_kept_prompt():
    slots = SlotManager(3, 64, 192)
    slot = finished(slots, range(1, 31))
    admission = slots.admit(sequence([1, 2, 3, 40, 41]))
    assert admission.slot != slot
    assert (admission.source, admission.num_cached) == (slot, 3)
    assert slots.admit(sequence(range(1, 31))).num_cached == 29


def test_kept_tokens_are_evicted_for_new_sequences():
    slots = SlotManager(2, 64, 40)
    slot = finished(slots, range(1, 31))
    assert slots.admit(sequence(range(100, 130))) is not None
    assert slots.take_discarded() == [slot]
    assert slots.num_tokens <= 40


def test_a_short_common_prefix_does_not_protect_an_old_prompt_from_eviction():
    slots = SlotManager(4, 64, 64)
    old = finished(slots, [1, *range(10, 30)])
    newer = finished(slots, range(40, 70))
    slots.admit(sequence([1, *range(70, 90)]))
    assert (slots.num_held(old), slots.num_held(newer)) == (0, 30)


def test_a_sequence_that_cannot_fit_evicts_nothing():
    slots = SlotManager(2, 64, 40)
    finished(slots, range(1, 21))
    assert slots.admit(sequence(range(50))) is None
    assert slots.admit(sequence(range(1, 21))).num_cached == 19


def test_nothing_is_kept_without_prefix_sharing():
    slots = SlotManager(2, 64, 128, shares_prefixes=False)
    slot = finished(slots, range(1, 9))
    assert slots.take_discarded() == [slot]
    assert slots.admit(sequence(range(1, 9))).num_cached == 0


def test_a_sequence_is_not_admitted_twice():
    slots = SlotManager(2, 64, 128)
    made = sequence(range(3))
    slots.admit(made)
    with pytest.raises(ValueError, match="admitted already"):
        slots.admit(made)


class Slots(RuleBasedStateMachine):
    """Random admissions and releases, compared with a model of the memory."""

    @initialize(num_slots=st.integers(1, 4), capacity=st.integers(8, 60), shares=st.booleans())
    def begin(self, num_slots, capacity, shares):
        self.slots = SlotManager(num_slots, 24, capacity, shares_prefixes=shares)
        self.memory = np.full((num_slots, 24), -1)
        self.running = []
        self.count = 0

    @rule(
        ids=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        image=st.none() | st.tuples(st.integers(0, 6), st.sampled_from([b"a", b"b"])),
        scope=st.sampled_from([b"", b"t"]),
    )
    def admit(self, ids, image, scope):
        images = []
        if image is not None:
            start, digest = image
            ids = [*ids[:start], *[7 if digest == b"a" else 8] * 2, *ids[start:]]
            images = [(len(ids[:start]), len(ids[:start]) + 2, digest)]
        made = sequence(ids, images=images, scope=scope, name=str(self.count))
        self.count += 1
        admission = self.slots.admit(made)
        if admission is None:
            return
        slot = admission.slot
        if admission.is_stale:
            self.memory[slot] = -1
        if admission.source is not None:
            num = admission.num_cached
            self.memory[slot, :num] = self.memory[admission.source, :num]
        self.give_back()
        assert admission.num_cached < len(made)
        offset = 1000 * (scope == b"t")
        expected = [offset + t for t in ids[: admission.num_cached]]
        assert self.memory[slot, : admission.num_cached].tolist() == expected
        self.running.append((made, offset, admission.num_cached))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data):
        index = data.draw(st.integers(0, len(self.running) - 1))
        made, offset, done = self.running[index]
        stop = data.draw(st.integers(done, len(made)))
        if stop == done:
            return
        slot = self.slots.slot(made)
        self.memory[slot, done:stop] = [offset + t for t in made.tokens(done, stop)]
        computed(self.slots, made, stop)
        self.running[index] = (made, offset, stop)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def grow(self, data):
        made, _, done = data.draw(st.sampled_from(self.running))
        if done == len(made) and self.slots.reserve(made, len(made) + 1):
            made.output_ids.append(data.draw(st.integers(0, 2)))
        self.give_back()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_drafts=st.integers(1, 4), num_kept=st.integers(0, 4))
    def draft(self, data, num_drafts, num_kept):
        made, _, done = data.draw(st.sampled_from(self.running))
        num_drafts = min(num_drafts, 24 - len(made))
        if done < len(made) or not self.slots.reserve(made, len(made) + num_drafts):
            return
        slot = self.slots.slot(made)
        self.memory[slot, done : done + num_drafts] = 5  # no token has this id
        self.slots.set_computed(made, done + num_drafts)
        self.give_back()
        self.slots.truncate(made, done)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data):
        made, _, _ = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.slots.release(made)
        self.give_back()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def swap(self, data):
        slots = st.integers(0, len(self.memory) - 1)
        pair = [data.draw(slots), data.draw(slots)]
        self.memory[pair] = self.memory[pair[::-1]]
        self.slots.swap(*pair)
        self.give_back()

    @invariant()
    def promises_are_kept(self):
        if not hasattr(self, "slots"):
            return
        slots = [self.slots.slot(made) for made, _, _ in self.running]
        assert len(set(slots)) == len(slots) == self.slots.num_sequences
        assert self.slots.num_tokens <= self.slots.capacity_tokens
        for (_, _, done), slot in zip(self.running, slots, strict=True):
            assert self.slots.num_held(slot) == done

    def give_back(self):
        for slot in self.slots.take_discarded():
            assert not self.slots.num_held(slot)
            self.memory[slot] = -1


Slots.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestSlots = Slots.TestCase


@given(st.data())
def test_the_longest_prefix_is_found_whichever_slot_holds_it(data):
    slots = SlotManager(4, 32, 200)
    kept = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=3))
    for ids in kept:
        finished(slots, ids)
    ids = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=9))
    admission = slots.admit(sequence(ids))
    assert admission.num_cached <= len(ids) - 1
    if len(kept) == 1:
        common = 0
        while common < min(len(kept[0]), len(ids) - 1) and kept[0][common] == ids[common]:
            common += 1
        assert admission.num_cached == common


class Receiver:
    """Applies the changes of a feed to an index."""

    def __init__(self, index):
        self.enqueue_change = index.apply


def chain(index, key):
    """Return the scope of a block, and the tokens of all blocks up to it."""
    block = index.blocks[key]
    ids = block.tokens
    while block.parent:
        block = index.blocks[block.parent]
        ids = block.tokens + ids
    return (block.scope, *ids)


def blocks_of(slots, block_tokens):
    """Return the whole blocks that any slot holds: scope, tokens so far and media so far."""
    found = set()
    for slot in slots._slots:
        for stop in range(block_tokens, slot.num_committed + 1, block_tokens):
            media = tuple(part for part in slot.parts[0] if part.start < stop)
            found.add((slot.scope, tuple(slot.ids[:stop].tolist()), media))
    return found


@pytest.mark.parametrize("copies", [True, False])
def test_replayed_events_of_random_steps_reproduce_what_slots_hold_at_every_step(copies):
    chance, index, num_removed = random.Random(11), CacheIndex(), 0
    slots, running = SlotManager(5, 40, 120, copies=copies), {}
    slots.set_cache_listener(feed := CacheFeed([Receiver(index)]), block_tokens=4)
    for number in range(10_000):
        action = chance.random()
        if action < 0.3:
            ids = [chance.randrange(2) for _ in range(chance.randrange(1, 24))]
            images = []
            if chance.random() < 0.4:
                start = chance.randrange(len(ids))
                ids[start:start] = [IMAGE] * 3
                images = [(start, start + 3, chance.choice([b"red", b"blue"]))]
            scope = chance.choice([b"", b"t"])
            spans = [image[:2] for image in images]
            made = sequence(ids, images, scope, spans, name=str(number))
            if (assignment := slots.admit(made)) is not None:
                running[made] = assignment.num_cached
        elif running:
            made = chance.choice(list(running))
            if action < 0.65:
                stop = chance.randint(running[made], len(made))
                running[made] = stop
                computed(slots, made, stop)
            elif action < 0.8 and slots.reserve(made, len(made) + 2):
                made.output_ids.append(chance.randrange(2))
            elif action < 0.85:
                slots.swap(chance.randrange(5), chance.randrange(5))
            else:
                slots.release(made)
                del running[made]
        slots.take_discarded()
        before = len(index.blocks)
        feed.flush()
        num_removed += len(index.blocks) < before
        expected = blocks_of(slots, 4)
        assert len(index.blocks) == len(expected)
        for made, num_cached in running.items():
            assert index.num_cached(made) >= num_cached - num_cached % 4
        chains = {chain(index, key) for key in index.blocks}
        assert chains == {(scope, *ids) for scope, ids, _ in expected}
    assert num_removed > 300


def test_events_come_in_blocks_of_16_tokens_and_only_if_prefixes_are_shared():
    for shares, num_blocks in ((True, 2), (False, 0)):
        slots, index = SlotManager(2, 64, 128, shares_prefixes=shares), CacheIndex()
        slots.set_cache_listener(feed := CacheFeed([Receiver(index)]))
        finished(slots, range(40))
        feed.flush()
        assert [len(block.tokens) for block in index.blocks.values()] == [16] * num_blocks
