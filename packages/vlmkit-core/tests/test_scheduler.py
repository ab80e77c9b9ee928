"""The scheduler: budgets hold, spans stay whole, every sequence ends, and nothing is left."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem
from vlmkit.kit.block_pool import BlockPool
from vlmkit.running.engine_loop.encoder_queue import waits
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.sampling import SamplingParams

LIMITS = EngineLimits(
    vocab_size=100,
    max_sequence_tokens=64,
    max_sequences=8,
    capacity_tokens=64,
    max_chunk_tokens=16,
    mixes_prefill_and_decode=True,
)

WHO = ("leader", "follower")


class PoolCache:
    """The block pool as a cache, without computation."""

    def __init__(self, limits=LIMITS, block_tokens=4, **options):
        self.limits = limits
        self.pool = BlockPool(limits.capacity_tokens // block_tokens, block_tokens, **options)
        self.admit, self.reserve = self.pool.admit, self.pool.reserve
        self.commit, self.truncate = self.pool.commit, self.pool.truncate
        self.release = self.pool.release


def sequence(num_prompt=5, max_tokens=3, images=(), name="s", **fields):
    prompt = Prompt(tuple(range(num_prompt)), tuple(images))
    params = SamplingParams()
    return Sequence(id=name, prompt=prompt, params=params, seed=0, max_tokens=max_tokens, **fields)


def slot(start, stop):
    return MediaSlot(start, stop, bytes(32), {}, stop - start)


class SimulatedLoop:
    """Runs a scheduler like the engine loop, with made-up tokens, and checks every step."""

    def __init__(self, scheduler, cache, encoder_steps=0):
        self.scheduler, self.cache, self.encoder_steps = scheduler, cache, encoder_steps
        self.live, self.steps, self.encoding = set(), [], {}

    def add(self, seq):
        self.scheduler.add(seq)
        self.live.add(seq)

    def step(self):
        step = self.scheduler.plan(self.cache)
        self.check(step)
        self.encode(step)
        items = tuple(item for item in step.items if not waits(item))
        if items:
            self.scheduler.commit(replace(step, items=items), 0.0)
        for item in items:
            self.cache.pool.commit(item.sequence, item.stop)
            if item.num_rows:
                item.sequence.output_ids.append(1)
                if len(item.sequence.output_ids) >= item.sequence.max_tokens:
                    self.end(item.sequence)
        self.cache.pool.check_integrity()
        self.steps.append(step)
        return step

    def encode(self, step):
        """Finish every image ``encoder_steps`` after the step that starts it."""
        for item in step.encodes:
            assert item not in self.encoding, "an image that is being encoded is asked for again"
            item.sequence.encoding.add(item.index)
            self.encoding[item] = self.encoder_steps
        for seq in step.preempted:
            self.forget(seq)
        for item, left in list(self.encoding.items()):
            self.encoding[item] -= 1
            if left == 0:
                del self.encoding[item]
                item.sequence.encoding.discard(item.index)
                item.sequence.features[item.index] = object()

    def forget(self, seq):
        seq.encoding.clear()
        self.encoding = {i: left for i, left in self.encoding.items() if i.sequence is not seq}

    def end(self, seq):
        self.scheduler.remove(seq, self.cache)
        self.forget(seq)
        self.live.discard(seq)

    def check(self, step):
        limits, settings_ = self.cache.limits, self.scheduler.settings
        members = [item.sequence for item in step.items]
        assert len(set(members)) == len(members), "a sequence stands twice in a step"
        assert not set(members) & set(step.preempted)
        chunks = [i for i in step.items if i.sequence.is_prefilling]
        for item in step.items:
            seq = item.sequence
            assert item.num_tokens > 0
            assert not seq.is_held, "a held sequence runs"
            assert item.start == seq.num_computed_tokens
            assert item.stop <= len(seq)
            assert item.num_rows == int(item.stop == len(seq))
            assert len(self.cache.pool.blocks(seq)) * 4 >= item.stop
            for span in seq.plan.spans:
                assert not span.start < item.stop < span.stop, "a span is cut"
            for index, image in enumerate(seq.prompt.media):
                if image.start < item.stop and image.stop > item.start:
                    is_planned = EncodeItem(seq, index) in step.encodes
                    assert is_planned or index in seq.features, "an image is not encoded"
        if not any(seq.plan.spans for seq in members):
            assert step.num_tokens <= settings_.max_step_tokens
            assert all(item.num_tokens <= limits.max_chunk_tokens for item in step.items)
        if not limits.mixes_prefill_and_decode:
            assert not chunks or len(chunks) == len(step.items)

    def run(self, most=2000):
        for _ in range(most):
            if not self.live:
                return
            is_encoding = bool(self.encoding)
            step = self.step()
            moves = step.items or step.preempted or is_encoding
            assert moves, "nothing runs although something is alive"
        raise AssertionError(f"{len(self.live)} sequences did not finish")


def new_loop(limits=LIMITS, cache_options=None, encoder_steps=0, **options):
    scheduler = ContinuousScheduler(SchedulerSettings(**options))
    return SimulatedLoop(scheduler, PoolCache(limits, **(cache_options or {})), encoder_steps)


def test_decodes_come_before_prefill_chunks_in_one_step():
    w = new_loop(max_step_tokens=8)
    first, second = sequence(4, 9), sequence(12)
    w.add(first)
    w.step()
    w.add(second)
    step = w.step()
    assert [(i.sequence, i.num_tokens) for i in step.items] == [(first, 1), (second, 7)]


@pytest.mark.parametrize(("mixes", "num_answers", "num_drafts"), [(1, 2, 3), (0, 2, 0), (0, 1, 3)])
def test_drafts_run_only_if_they_cost_less_than_a_step(mixes, num_answers, num_drafts):
    limits = replace(LIMITS, mixes_prefill_and_decode=bool(mixes), max_draft_tokens=3)
    w = new_loop(limits)
    answers = [sequence(4, 9) for _ in range(num_answers)]
    for answer in answers:
        w.add(answer)
    while any(answer.is_prefilling for answer in answers):
        w.step()
    for answer in answers:
        answer.drafts = (7, 8, 9, 10)
    step = w.scheduler.plan(w.cache)
    assert [len(item.drafts) for item in step.items] == [num_drafts] * num_answers
    assert all(item.num_rows == item.num_tokens == 1 + num_drafts for item in step.items)


@pytest.mark.parametrize(("num_prompt", "num_drafts"), [(0, 17), (8, 1)])
def test_drafts_leave_tokens_of_a_step_for_prompts(num_prompt, num_drafts):
    w = new_loop(replace(LIMITS, max_draft_tokens=20, max_item_rows=21), max_step_tokens=18)
    w.add(answer := sequence(4, 30))
    w.step()
    answer.drafts = tuple(range(20))
    if num_prompt:
        w.add(sequence(num_prompt))
    items = w.scheduler.plan(w.cache).items
    assert [len(item.drafts) for item in items] == [num_drafts, *[0] * (len(items) - 1)]
    assert len(items) == 1 + bool(num_prompt)


def test_a_long_prompt_runs_in_chunks_with_a_row_only_at_its_end():
    w = new_loop(max_step_tokens=8, cache_options={"shares_prefixes": False})
    w.add(sequence(20, 1))
    steps = [w.step() for _ in range(3)]
    assert [s.items[0].num_tokens for s in steps] == [8, 8, 4]
    assert [s.items[0].num_rows for s in steps] == [0, 0, 1]


def test_a_chunk_stops_before_a_span_that_does_not_fit():
    w = new_loop(max_step_tokens=8)
    w.add(sequence(20, 1, plan=PromptPlan((Span(5, 12),))))
    assert [w.step().items[0].num_tokens for _ in range(3)] == [5, 8, 7]


def test_a_span_over_the_budget_runs_whole():
    w = new_loop(max_step_tokens=8)
    w.add(sequence(20, 1, plan=PromptPlan((Span(0, 20),))))
    assert w.step().items[0].num_tokens == 20


@pytest.mark.parametrize(("most", "num_first"), [(None, 1), (30, 1), (8, 2)])
@pytest.mark.parametrize("who", ["both", "leader", "follower"])
def test_nothing_waits_for_tokens_that_are_not_shared(most, num_first, who):
    """Of two equal prompts, the second one waits for the first if it gets enough tokens of it."""
    limits = replace(LIMITS, prefix_block_tokens=4, capacity_tokens=256)
    loop = SimulatedLoop(ContinuousScheduler(SchedulerSettings()), PoolCache(limits))
    plans = [PromptPlan(max_shared_tokens=most if who in ("both", each) else None) for each in WHO]
    sequences = [sequence(40, name=each, plan=plan) for each, plan in zip(WHO, plans, strict=True)]
    for each in sequences:
        loop.add(each)
    assert len(loop.step().items) == num_first
    while loop.live:
        loop.step()
    shared = 36 if most is None else most - most % 4
    assert sequences[1].num_cached_tokens == (shared if num_first == 1 else 0)


def test_a_span_over_the_remaining_budget_waits_for_the_next_step():
    w = new_loop(max_step_tokens=8)
    w.add(sequence(4, 1))
    w.add(sequence(6, 1, plan=PromptPlan((Span(0, 6),))))
    assert len(w.step().items) == 1
    assert w.step().items[0].num_tokens == 6


def test_images_over_the_encoder_budget_wait_but_one_is_always_encoded():
    w = new_loop(encoder_budget_tokens=5, max_step_tokens=64)
    seq = sequence(15, 1, images=[slot(1, 7), slot(8, 12)])
    w.add(seq)
    first, second = w.step(), w.step()
    assert [e.index for e in first.encodes] == [0]
    assert first.items[0].num_tokens == 8
    assert [e.index for e in second.encodes] == [1]


def test_an_image_for_cross_attention_counts_by_its_encoded_tokens():
    w = new_loop(encoder_budget_tokens=5)
    for n in range(2):
        w.add(sequence(5, 1, images=[MediaSlot(0, 1, bytes([n]) * 32, {}, 1, num_encoded=3)]))
    assert [len(w.step().encodes) for _ in range(2)] == [1, 1]


def test_an_image_is_encoded_only_when_its_tokens_enter_the_plan():
    w = new_loop(max_step_tokens=4)
    w.add(sequence(12, 1, images=[slot(6, 10)]))
    assert not w.step().encodes
    assert [e.index for e in w.step().encodes] == [0]
    assert not w.step().encodes


def test_a_chunk_waits_while_its_image_is_encoded_and_others_run():
    w = new_loop(max_step_tokens=8, encoder_steps=3)
    with_image, other = sequence(12, 1, images=[slot(2, 6)]), sequence(8, 9)
    w.add(with_image)
    w.add(other)
    first = w.step()
    assert [e.sequence for e in first.encodes] == [i.sequence for i in first.items] == [with_image]
    for _ in range(3):
        assert [i.sequence for i in w.step().items] == [other]
    assert [(i.sequence, i.num_tokens) for i in w.step().items] == [(other, 1), (with_image, 7)]


def test_a_chunk_does_not_wait_for_an_image_behind_it():
    w = new_loop(max_step_tokens=8, encoder_steps=9)
    seq = sequence(12, 1, images=[slot(6, 10)])
    w.add(seq)
    w.step()
    w.scheduler.settings = SchedulerSettings(max_step_tokens=4)
    assert [(i.start, i.num_tokens) for i in w.step().items] == [(0, 4)]
    assert not w.step().items


def test_images_being_encoded_count_against_the_encoder_budget():
    w = new_loop(encoder_budget_tokens=6, encoder_steps=2)
    seqs = [sequence(5, 1, images=[MediaSlot(0, 4, bytes([n]) * 32, {}, 4)]) for n in range(3)]
    for seq in seqs:
        w.add(seq)
    named = [[seqs.index(e.sequence) for e in w.step().encodes] for _ in range(7)]
    assert named == [[0], [], [], [1], [], [], [2]]


def test_an_image_over_the_encoder_budget_is_encoded_when_the_encoder_is_idle():
    w = new_loop(encoder_budget_tokens=2, encoder_steps=1)
    for n in range(2):
        w.add(sequence(5, 1, images=[MediaSlot(0, 4, bytes([n]) * 32, {}, 4)]))
    assert [len(w.step().encodes) for _ in range(4)] == [1, 0, 1, 0]
    w.run()


def test_the_newest_sequence_is_preempted_when_the_cache_is_full():
    limits = replace(LIMITS, capacity_tokens=16, max_sequence_tokens=16)
    w = new_loop(limits)
    first, second = sequence(6, 8, name="1"), sequence(6, 8, name="2")
    w.add(first)
    w.add(second)
    while not (step := w.step()).preempted:
        pass
    assert step.preempted == (second,)
    assert second.num_computed_tokens == 0
    assert second.output_ids, "its tokens are kept"
    w.run()
    assert len(second.output_ids) == 8


def test_more_urgent_requests_run_first():
    w = new_loop(max_running=1)
    late, urgent = sequence(name="late"), sequence(name="urgent", priority=-1)
    w.add(late)
    w.add(urgent)
    assert w.step().items[0].sequence is urgent


def test_a_more_urgent_request_preempts_a_less_urgent_one():
    w = new_loop(max_running=1)
    calm, urgent = sequence(5, 9, name="calm"), sequence(name="urgent", priority=-1)
    w.add(calm)
    w.step()
    w.add(urgent)
    w.step()
    assert w.step().items[0].sequence is urgent
    w.run()
    assert len(calm.output_ids) == 9


def test_requests_of_equal_priority_run_in_order_of_arrival():
    w = new_loop(max_running=1)
    sequences = [sequence(5, 1, name=str(i)) for i in range(5)]
    for seq in sequences:
        w.add(seq)
    assert [w.step().items[0].sequence for _ in sequences] == sequences


def test_a_full_queue_refuses_a_request():
    w = new_loop(max_waiting=2)
    w.add(sequence())
    w.add(sequence())
    with pytest.raises(QueueFull, match="2 requests are waiting already"):
        w.scheduler.add(sequence())


def test_a_held_sequence_stays_running_but_is_not_planned():
    w = new_loop()
    seq = sequence(4, 5)
    w.add(seq)
    w.step()
    seq.is_held = True
    assert not w.step().items
    assert w.scheduler.num_running == 1
    seq.is_held = False
    assert w.step().items


def test_cancelled_waiting_requests_leave_nothing_behind():
    w = new_loop(max_running=1, max_waiting=1000)
    w.add(sequence(5, 50))
    w.step()
    for _ in range(500):
        seq = sequence()
        w.add(seq)
        w.end(seq)
    assert w.scheduler.num_waiting == 0
    assert len(w.scheduler._queue) < 200


def test_prefills_and_decodes_alternate_for_an_engine_that_cannot_mix():
    w = new_loop(replace(LIMITS, mixes_prefill_and_decode=False), max_step_tokens=4)
    first = sequence(4, 6)
    w.add(first)
    w.step()
    w.add(sequence(12, 1))
    kinds = ["prefill" if w.step().items[0].sequence is not first else "decode" for _ in range(4)]
    assert sorted(kinds) == ["decode", "decode", "prefill", "prefill"]
    w.run()


@st.composite
def prompts(draw):
    num = draw(st.integers(1, 24))
    images, spans, at = [], [], 0
    while at < num and draw(st.booleans()):
        start = draw(st.integers(at, num - 1))
        stop = draw(st.integers(start + 1, min(num, start + 8)))
        images.append(slot(start, stop))
        if draw(st.booleans()):
            spans.append(Span(start, stop))
        at = stop
    return num, images, tuple(spans)


@settings(max_examples=150)
@given(
    requests=st.lists(
        st.tuples(prompts(), st.integers(1, 12), st.integers(-1, 1), st.integers(0, 20)),
        min_size=1,
        max_size=12,
    ),
    budget=st.integers(1, 20),
    encoder_budget=st.integers(1, 12),
    capacity=st.sampled_from([40, 64, 128]),
    mixes=st.booleans(),
    shares=st.booleans(),
    encoder_steps=st.sampled_from([0, 0, 1, 7]),
    aborts=st.sets(st.integers(0, 40), max_size=6),
)
def test_every_sequence_ends_and_the_cache_is_empty_whatever_is_requested(
    requests, budget, encoder_budget, capacity, mixes, shares, encoder_steps, aborts
):
    limits = replace(LIMITS, capacity_tokens=capacity, mixes_prefill_and_decode=mixes)
    w = new_loop(
        limits,
        {"shares_prefixes": shares},
        encoder_steps,
        max_step_tokens=budget,
        encoder_budget_tokens=encoder_budget,
    )
    pending = sorted(requests, key=lambda request: request[3])
    for moment in range(3000):
        while pending and pending[0][3] <= moment:
            (num, images, spans), max_tokens, priority, _ = pending.pop(0)
            w.add(sequence(num, max_tokens, images, plan=PromptPlan(spans), priority=priority))
        if moment in aborts and w.live:
            w.end(min(w.live, key=len))
        if not w.live and not pending:
            break
        is_encoding = bool(w.encoding)
        step = w.step()
        assert step.items or step.preempted or is_encoding or not w.live
    assert not w.live
    assert w.scheduler.num_running == w.scheduler.num_waiting == 0
    assert w.cache.pool.num_free_blocks == capacity // 4


def test_a_held_sequence_is_preempted_by_a_new_one_and_resumes_later():
    w = new_loop(max_running=1)
    held, newcomer = sequence(4, 5), sequence(6, 3)
    w.add(held)
    w.step()
    held.is_held = True
    w.add(newcomer)
    assert w.step().preempted == (held,)
    while newcomer in w.live:
        assert w.step().items
    assert not w.step().items
    held.is_held = False
    w.run()
    assert len(held.output_ids) == 5


@settings(max_examples=150)
@given(
    requests=st.lists(
        st.tuples(prompts(), st.integers(1, 12), st.integers(-1, 1), st.booleans()),
        min_size=1,
        max_size=10,
    ),
    budget=st.integers(1, 20),
    max_running=st.integers(1, 4),
    mixes=st.booleans(),
    aborts=st.sets(st.integers(0, 40), max_size=4),
)
def test_held_sequences_block_no_others_and_finish_after_release(
    requests, budget, max_running, mixes, aborts
):
    limits = replace(LIMITS, capacity_tokens=40, mixes_prefill_and_decode=mixes)
    w = new_loop(limits, max_step_tokens=budget, max_running=max_running)
    slow = set()
    for (num, images, spans), max_tokens, priority, is_slow in requests:
        seq = sequence(num, max_tokens, images, plan=PromptPlan(spans), priority=priority)
        w.add(seq)
        if is_slow and max_tokens > 1:
            slow.add(seq)
    for moment in range(3000):
        if moment in aborts and w.live:
            w.end(min(w.live, key=len))
        step = w.step()
        for seq in slow & {item.sequence for item in step.items if item.num_rows}:
            seq.is_held = True
        if all(seq.is_held for seq in w.live):
            break
    assert w.live <= slow
    for seq in w.live:
        seq.is_held = False
    slow.clear()
    w.run()
    assert w.scheduler.num_running == w.scheduler.num_waiting == 0
    assert w.cache.pool.num_free_blocks == 10


def test_planning_time_depends_on_running_and_not_on_waiting_requests():
    """Prints the time of one plan with 1,000 running and 10,000 waiting; asserts only the shape."""
    limits = replace(LIMITS, max_sequences=1000, capacity_tokens=1000 * 64)
    w = new_loop(limits, max_running=1000, max_waiting=20_000, max_step_tokens=20_000)
    for i in range(11_000):
        w.add(sequence(5, 40, name=str(i)))
    while w.scheduler.num_running < 1000:
        w.step()
    started = time.perf_counter()
    step = w.scheduler.plan(w.cache)
    print(f"one plan: {1e3 * (time.perf_counter() - started):.2f} ms")
    assert len(step.items) == 1000
