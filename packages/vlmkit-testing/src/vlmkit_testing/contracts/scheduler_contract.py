"""What every scheduler must do.

Order and shared prefixes are in further modules.
"""

import dataclasses
import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import example, given, settings, strategies as st

from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import MediaSlot, Prompt, Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.examples import examples
from vlmkit_testing.contracts.scheduler_load_contract import SchedulerLoadContract
from vlmkit_testing.contracts.scheduler_order_contract import SchedulerOrderContract
from vlmkit_testing.contracts.scheduler_sharing_contract import SchedulerSharingContract
from vlmkit_testing.contracts.scheduler_simulation import Simulation
from vlmkit_testing.contracts.scheduler_subject import (
    LIMITS,
    MAX_SPAN_TOKENS,
    NUM_SLOT_TOKENS,
    Job,
    Layout,
    engine_limits,
    finish,
    jobs,
    layouts,
    wants_rows,
)
from vlmkit_testing.contracts.sequences import WatchedSequence, new_sequence
from vlmkit_testing.contracts.strict_cache import StrictCache

# In one step, the items of texts run and an item waits for its image.
TEXT = Job(num_tokens=4, max_tokens=12, image_starts=(), priority=0, first_token=0)
IMAGE = Job(num_tokens=12, max_tokens=4, image_starts=(1,), priority=0, first_token=500)
# The second span begins before its medium, which does not fit beside the first in a budget.
WIDE = Layout(
    num_tokens=40,
    spans=(Span(5, 12), Span(18, 30)),
    media=((Span(6, 12), 3000), (Span(20, 26), 3000)),
    first_token=0,
)

NUM_HELD_STEPS = 12


class SchedulerContract(SchedulerSharingContract, SchedulerOrderContract, SchedulerLoadContract):
    """Inherit it, override :meth:`make`, and run pytest.

    A scheduler that does not order by priority, or by arrival, says so: its attribute
    ``ignores`` names ``priority``, ``arrival`` or both.
    """

    def test_an_idle_scheduler_plans_nothing(self) -> None:
        """An empty step, not an error."""
        step = self.simulation().step()
        assert (step.encodes, step.items, step.preempted) == ((), (), ())

    def test_a_full_queue_refuses_and_keeps_what_it_has(self) -> None:
        """At the stated bound; a refused sequence leaves no trace."""
        simulation = self.simulation()
        bound = simulation.scheduler.max_waiting
        for _ in range(bound):
            simulation.add(new_sequence(max_tokens=1))
        with pytest.raises(QueueFull):
            simulation.scheduler.add(new_sequence())
        assert simulation.scheduler.num_waiting == bound
        simulation.run()
        simulation.check_empty()

    @examples
    @given(
        work=st.lists(jobs(), min_size=1, max_size=8),
        limits=engine_limits(),
        atomic=st.booleans(),
        encoder_steps=st.sampled_from([0, 0, 1, 5]),
    )
    @example(work=[TEXT, IMAGE, TEXT], limits=LIMITS, atomic=False, encoder_steps=5)
    def test_every_sequence_finishes(
        self, work: list[Job], limits: EngineLimits, atomic: bool, encoder_steps: int
    ) -> None:
        """The simulation checks every rule; no sequence starves and nothing is left."""
        finish(self.simulation(limits, encoder_steps=encoder_steps), work, atomic=atomic)

    @settings(examples, max_examples=50)
    @given(
        work=st.lists(layouts(), min_size=1, max_size=4),
        limits=engine_limits(),
        max_chunk_tokens=st.sampled_from([MAX_SPAN_TOKENS, 17, 64]),
        encoder_steps=st.sampled_from([0, 0, 2]),
    )
    @example(work=[WIDE], limits=LIMITS, max_chunk_tokens=64, encoder_steps=0)
    def test_spans_and_media_are_independent(
        self,
        work: list[Layout],
        limits: EngineLimits,
        max_chunk_tokens: int,
        encoder_steps: int,
    ) -> None:
        """No item cuts a span, wherever media begin and however large they are to the encoder."""
        limits = replace(limits, max_chunk_tokens=max_chunk_tokens)
        simulation = self.simulation(limits, encoder_steps=encoder_steps)
        sequences = [layout.make() for layout in work]
        for sequence in sequences:
            simulation.add(sequence)
        simulation.run()
        assert [len(s.output_ids) for s in sequences] == [s.max_tokens for s in sequences]
        simulation.check_empty()

    @examples
    @given(
        work=st.lists(jobs(), min_size=1, max_size=8),
        limits=engine_limits(),
        num_drafts=st.integers(1, 5),
        max_draft_tokens=st.integers(0, 3),
    )
    def test_drafts_displace_no_sequence(
        self, work: list[Job], limits: EngineLimits, num_drafts: int, max_draft_tokens: int
    ) -> None:
        """Drafts are optional; every sequence that runs without them runs with them."""
        max_draft_tokens = min(max_draft_tokens, limits.max_chunk_tokens - 1)
        limits = replace(
            limits, max_draft_tokens=max_draft_tokens, max_item_rows=1 + max_draft_tokens
        )
        finish(Simulation(self.make(), limits, num_drafts=num_drafts), work)

    @examples
    @given(
        work=st.lists(
            st.tuples(jobs(), st.sampled_from(["", "last", "mean", "cls", "score"])),
            min_size=1,
            max_size=8,
        ),
        limits=engine_limits(),
        max_item_rows=st.integers(1, NUM_SLOT_TOKENS),
        atomic=st.booleans(),
    )
    def test_a_sequence_without_an_answer_gets_each_wanted_row_once(
        self,
        work: list[tuple[Job, str]],
        limits: EngineLimits,
        max_item_rows: int,
        atomic: bool,
    ) -> None:
        """Beside answers, in small chunks for few rows, and preempted like them."""
        simulation = self.simulation(replace(limits, max_item_rows=max_item_rows))
        for job, kind in work:
            sequence = job.make(atomic=atomic)
            if kind:
                wants_rows(sequence, kind)
            simulation.add(sequence)
        simulation.run()
        simulation.check_empty()

    @examples
    @given(
        work=st.lists(st.tuples(jobs(), st.integers(0, 12)), min_size=1, max_size=8),
        limits=engine_limits(),
    )
    def test_a_plan_is_a_function_of_what_was_added(
        self, work: list[tuple[Job, int]], limits: EngineLimits
    ) -> None:
        """The same arrivals and durations give the same steps."""
        traces = []
        for _ in range(2):
            simulation = self.simulation(limits)
            for number in range(13):
                for job, arrival in work:
                    if arrival == number:
                        simulation.add(job.make(atomic=False))
                simulation.step()
            simulation.run()
            traces.append(simulation.trace)
        assert traces[0] == traces[1]

    @examples
    @given(
        work=st.lists(st.tuples(jobs(), st.integers(0, 8)), min_size=1, max_size=8),
        limits=engine_limits(),
        encoder_steps=st.sampled_from([0, 3]),
    )
    def test_a_removed_sequence_leaves_nothing_behind(
        self, work: list[tuple[Job, int]], limits: EngineLimits, encoder_steps: int
    ) -> None:
        """At any stage: waiting, in prefill, or while it decodes."""
        simulation = self.simulation(limits, encoder_steps=encoder_steps)
        sequences = [job.make(atomic=True) for job, _ in work]
        for sequence in sequences:
            simulation.add(sequence)
        for number in range(9):
            for sequence, (_, leaves) in zip(sequences, work, strict=True):
                if leaves == number and sequence in simulation.unfinished:
                    simulation.end(sequence)
            simulation.step()
        simulation.check_empty()

    @examples
    @given(
        work=st.lists(st.tuples(jobs(), st.integers(0, 20)), min_size=1, max_size=6),
        limits=engine_limits(),
    )
    def test_a_step_may_be_repeated_without_a_plan(
        self, work: list[tuple[Job, int]], limits: EngineLimits
    ) -> None:
        """While all admitted sequences decode and none waits; others may arrive meanwhile."""
        simulation = Simulation(self.make(), limits, repeats=True)
        sequences = [job.make(atomic=False) for job, _ in work]
        for number in range(21):
            for sequence, (_, arrival) in zip(sequences, work, strict=True):
                if arrival == number:
                    simulation.add(sequence)
            simulation.step()
        simulation.run()
        assert [len(s.output_ids) for s in sequences] == [job.max_tokens for job, _ in work]
        simulation.check_empty()

    @examples
    @given(work=st.lists(jobs(), min_size=1, max_size=8), num_drafts=st.sampled_from([0, 0, 3, 9]))
    def test_a_step_keeps_to_its_budget(self, work: list[Job], num_drafts: int) -> None:
        """If there is one; drafts count as other tokens."""
        if self.max_step_tokens is None:
            pytest.skip("this scheduler has no bound on the tokens of a step")
        limits = replace(LIMITS, max_draft_tokens=num_drafts, max_item_rows=1 + num_drafts)
        simulation = Simulation(self.make(), limits, num_drafts=num_drafts)
        for job in work:
            simulation.add(job.make(atomic=False))
        while simulation.unfinished:
            assert 1 <= simulation.step().num_tokens <= self.max_step_tokens

    def test_a_held_sequence_does_not_run_until_it_is_released(self) -> None:
        """Its reader is behind; others continue."""
        simulation = self.simulation()
        held, other = (new_sequence(range(5), max_tokens=20) for _ in range(2))
        simulation.add(held)
        simulation.add(other)
        while not held.output_ids:
            simulation.step()
        held.is_held = True
        length = len(held.output_ids)
        for _ in range(5):
            simulation.step()
        assert len(held.output_ids) == length
        assert len(other.output_ids) > length
        held.is_held = False
        simulation.run()
        assert len(held.output_ids) == 20

    @examples
    @given(
        work=st.lists(
            st.tuples(jobs(), st.integers(0, 10), st.integers(1, 9)), min_size=1, max_size=8
        ),
        limits=engine_limits(),
        atomic=st.booleans(),
        encoder_steps=st.sampled_from([0, 2]),
    )
    def test_sequences_may_be_held_in_any_step(
        self,
        work: list[tuple[Job, int, int]],
        limits: EngineLimits,
        atomic: bool,
        encoder_steps: int,
    ) -> None:
        """While they have room: in a prefill, within an image, in an answer, and twice."""
        simulation = self.simulation(limits, encoder_steps=encoder_steps)
        sequences = [job.make(atomic=atomic) for job, _, _ in work]
        for sequence in sequences:
            simulation.add(sequence)
        for number in range(2 * NUM_HELD_STEPS):
            for sequence, (_, start, length) in zip(sequences, work, strict=True):
                is_held = start <= number % NUM_HELD_STEPS < start + length
                sequence.is_held = is_held and (
                    sequence.is_held or sequence in simulation.cache.reserved
                )
            assert not any(item.sequence.is_held for item in simulation.step().items)
        for sequence in sequences:
            sequence.is_held = False
        simulation.run()
        assert [len(s.output_ids) for s in sequences] == [job.max_tokens for job, _, _ in work]
        simulation.check_empty()

    def test_a_full_cache_delays_but_loses_no_sequence(self) -> None:
        """The cache holds two of four answers."""
        limits = dataclasses.replace(LIMITS, capacity_tokens=64, prefix_block_tokens=0)
        simulation = self.simulation(limits)
        sequences = [new_sequence([n] * 20, max_tokens=20) for n in range(4)]
        for sequence in sequences:
            simulation.add(sequence)
        simulation.run()
        assert [len(s.output_ids) for s in sequences] == [20] * 4
        simulation.check_empty()

    def test_a_full_queue_accepts_preempted_sequences(self) -> None:
        """The bound is for new sequences."""
        limits = replace(LIMITS, capacity_tokens=64, prefix_block_tokens=0, max_sequences=3)
        simulation = self.simulation(limits)
        answers = [new_sequence([n] * 18, max_tokens=30) for n in range(3)]
        for sequence in answers:
            simulation.add(sequence)
        while not any(sequence.output_ids for sequence in answers):
            simulation.step()
        while simulation.scheduler.num_waiting < simulation.scheduler.max_waiting:
            simulation.add(new_sequence(max_tokens=1))
        simulation.run()
        assert [len(sequence.output_ids) for sequence in answers] == [30] * 3
        simulation.check_empty()

    def test_a_preempted_sequence_starts_again(self) -> None:
        """Also within an image, which is encoded again; the simulation checks its state."""
        limits = replace(
            LIMITS, capacity_tokens=50, prefix_block_tokens=0, max_chunk_tokens=NUM_SLOT_TOKENS
        )
        simulation = self.simulation(limits)
        answers = new_sequence([1] * 10, max_tokens=30)
        slot = MediaSlot(2, 32, bytes(32), {}, 30)
        reads = new_sequence(Prompt(tuple(range(34)), (slot,)), max_tokens=3)
        simulation.add(answers)
        while not answers.output_ids:
            simulation.step()
        simulation.add(reads)
        simulation.run()
        assert len(reads.output_ids) == 3
        simulation.check_empty()

    @pytest.mark.parametrize(("num_prompt", "max_tokens"), [(64, 1), (50, 30)])
    def test_a_sequence_that_never_fits_gets_an_empty_step(
        self, num_prompt: int, max_tokens: int
    ) -> None:
        """It is alone and does not fit; the loop fails it after an empty step."""
        simulation = self.simulation(replace(LIMITS, capacity_tokens=64, prefix_block_tokens=0))
        too_long = new_sequence(range(num_prompt), max_tokens=max_tokens)
        simulation.add(too_long)
        for _ in range(100):
            step = simulation.step()
            if not step.items and not step.preempted:
                break
        assert step.items == (), "a step has items that have no room"
        assert simulation.scheduler.num_waiting == 1
        simulation.end(too_long)
        simulation.add(new_sequence(max_tokens=3))
        simulation.run()
        simulation.check_empty()

    def test_drafts_preempt_no_sequence(self) -> None:
        """The cache holds two answers, and the drafts of one at most."""
        limits = replace(
            LIMITS,
            capacity_tokens=44,
            prefix_block_tokens=0,
            max_draft_tokens=3,
            max_item_rows=4,
        )
        simulation = Simulation(self.make(), limits, num_drafts=3, drafts_stand=False)
        for number, max_tokens in enumerate((30, 12)):
            simulation.add(new_sequence([number] * 10, max_tokens=max_tokens))
        while simulation.unfinished:
            assert not simulation.step().preempted, "an answer lost its room for another's drafts"
        simulation.check_empty()

    def test_a_held_sequence_gives_up_its_slot_when_needed(self) -> None:
        """It runs again when its reader has caught up."""
        simulation = self.simulation(replace(LIMITS, max_sequences=1))
        held = new_sequence([7] * 5, max_tokens=20)
        simulation.add(held)
        while not held.output_ids:
            simulation.step()
        held.is_held = True
        for number in range(3):
            other = new_sequence([number] * 5, max_tokens=4)
            simulation.add(other)
            for _ in range(20):
                simulation.step()
            assert len(other.output_ids) == 4, "one that is held keeps its place from others"
        held.is_held = False
        simulation.run()
        assert len(held.output_ids) == 20
        simulation.check_empty()

    @pytest.mark.parametrize("is_read", [False, True])
    def test_a_held_sequence_may_end_without_its_slot(self, is_read: bool) -> None:
        """Its client is gone while another sequence has its place, or just when it reads again."""
        simulation = self.simulation(replace(LIMITS, max_sequences=1))
        held = WatchedSequence.of(new_sequence([7] * 5, max_tokens=20))
        simulation.add(held)
        while not held.output_ids:
            simulation.step()
        held.is_held = True
        simulation.add(new_sequence([1] * 5, max_tokens=9))
        simulation.step()
        held.is_held = not is_read
        simulation.end(held)
        held.is_held = False  # a scheduler that still knows it would run it
        simulation.add(new_sequence([2] * 5, max_tokens=4))
        simulation.run()
        simulation.check_empty()
        scheduler, ref = simulation.scheduler, weakref.ref(held)
        del simulation, held
        scheduler.plan(StrictCache(LIMITS))
        gc.collect()
        assert ref() is None, "the scheduler keeps it"

    @pytest.mark.parametrize("num_output", [0, 3])
    def test_a_failed_sequence_harms_no_other(self, num_output: int) -> None:
        """A failed sequence is removed and not committed, alone in its step or not."""
        for num_others in (0, 3):
            failing = new_sequence([9] * 5, max_tokens=10)

            def succeeds(item: WorkItem, failing: Sequence = failing) -> bool:
                return item.sequence is not failing or len(failing.output_ids) < num_output

            simulation = Simulation(self.make(), LIMITS, succeeds=succeeds)
            others = [new_sequence([n] * 5, max_tokens=10) for n in range(num_others)]
            for sequence in (*others, failing):
                simulation.add(sequence)
            simulation.run()
            assert [len(sequence.output_ids) for sequence in others] == [10] * num_others
            assert len(failing.output_ids) == num_output
            simulation.check_empty()

    def test_an_ended_sequence_is_released(self) -> None:
        """Finished, removed or refused: nothing refers to it."""
        limits = replace(LIMITS, max_sequences=2, capacity_tokens=64)
        simulation = self.simulation(limits)
        refs = []
        for number in range(40):
            sequence = WatchedSequence.of(new_sequence([number % 3] * 20, max_tokens=9))
            refs.append(weakref.ref(sequence))
            if simulation.scheduler.num_waiting < min(8, simulation.scheduler.max_waiting):
                simulation.add(sequence)
            for _ in range(2):
                simulation.step()
            if number % 4 == 0:
                simulation.end(simulation.unfinished[-1])
        while simulation.scheduler.num_waiting < simulation.scheduler.max_waiting:
            simulation.add(new_sequence(max_tokens=1))
        refused = WatchedSequence.of(new_sequence())
        with pytest.raises(QueueFull):
            simulation.scheduler.add(refused)
        refs.append(weakref.ref(refused))
        while simulation.unfinished:
            simulation.end(simulation.unfinished[-1])
        scheduler = simulation.scheduler
        del simulation, sequence, refused
        scheduler.plan(StrictCache(limits))
        gc.collect()
        num_kept = sum(ref() is not None for ref in refs)
        assert not num_kept, f"the scheduler keeps {num_kept} sequences that ended"

    def test_removed_sequences_do_not_accumulate(self) -> None:
        """Clients come and go while the queue does not move."""
        simulation = self.simulation(replace(LIMITS, max_sequences=1))
        simulation.add(new_sequence([1] * 5, max_tokens=20))
        simulation.step()
        refs = []
        for _ in range(1000):
            sequence = WatchedSequence.of(new_sequence([2] * 5, priority=5))
            refs.append(weakref.ref(sequence))
            simulation.scheduler.add(sequence)
            simulation.scheduler.remove(sequence, simulation.cache)
        del sequence
        gc.collect()
        assert sum(ref() is not None for ref in refs) < 500
        simulation.run()
        simulation.check_empty()
