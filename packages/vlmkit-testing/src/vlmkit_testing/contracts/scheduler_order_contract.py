"""What every scheduler must do: run all sequences, in the order that it claims."""

import dataclasses
import itertools
import time
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit_testing.contracts.examples import examples
from vlmkit_testing.contracts.scheduler_simulation import Simulation
from vlmkit_testing.contracts.scheduler_subject import (
    LIMITS,
    LONG_LIMITS,
    ORDERS,
    Job,
    SchedulerSubject,
    engine_limits,
    jobs,
)
from vlmkit_testing.contracts.sequences import new_sequence
from vlmkit_testing.contracts.simulated_time import StepCost

CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
NO_RANK = (2**63, 0)
MOST_NEWCOMER_STEPS = 30  # until its first token, with a prompt of 20 tokens
MOST_STEPS = 400  # for answers of 40 tokens


class SchedulerOrderContract(SchedulerSubject):
    """The part of the contract about order and fairness."""

    def test_sequences_are_batched(self) -> None:
        """A step has items of several sequences."""
        simulation = self.simulation()
        for _ in range(4):
            simulation.add(new_sequence(range(5), max_tokens=10))
        simulation.run()
        assert max(map(len, simulation.trace)) == 4

    @pytest.mark.parametrize("mixes", [True, False])
    def test_a_newcomer_does_not_wait_for_the_others_to_finish(self, mixes: bool) -> None:
        """Continuous batching: a new sequence joins while the first continues."""
        simulation = self.simulation(dataclasses.replace(LIMITS, mixes_prefill_and_decode=mixes))
        first, later = (new_sequence([n] * 5, max_tokens=50) for n in range(2))
        simulation.add(first)
        for _ in range(5):
            simulation.step()
        simulation.add(later)
        for _ in range(20):
            simulation.step()
        assert later.output_ids
        assert len(first.output_ids) > 5

    @pytest.mark.parametrize("mixes", [True, False])
    def test_a_newcomer_does_not_wait_for_answers_that_draft(self, mixes: bool) -> None:
        """However many drafts each answer has in each step, and whether or not they stand.

        Drafts take tokens of a step, too, and must leave some for prompts.
        """
        for num_drafts, drafts_stand in itertools.product((1, 3, 7, 15), (False, True)):
            limits = dataclasses.replace(
                LIMITS,
                mixes_prefill_and_decode=mixes,
                max_sequence_tokens=1024,
                capacity_tokens=4096,
                max_draft_tokens=num_drafts,
                max_item_rows=1 + num_drafts,
            )
            simulation = Simulation(
                self.make(),
                limits,
                num_drafts=num_drafts,
                drafts_stand=drafts_stand,
                cost=StepCost(),
            )
            answers = [new_sequence([n] * 5, max_tokens=900) for n in range(3)]
            for sequence in answers:
                simulation.add(sequence)
            while not all(sequence.output_ids for sequence in answers):
                simulation.step()
            newcomer = new_sequence(range(100, 120), max_tokens=3)
            simulation.add(newcomer)
            lengths = [len(sequence.output_ids) for sequence in answers]
            for _ in range(MOST_NEWCOMER_STEPS):
                simulation.step()
            assert newcomer.output_ids, f"a newcomer waits while answers have {num_drafts} drafts"
            grown = zip(lengths, answers, strict=True)
            assert all(before < len(sequence.output_ids) for before, sequence in grown)

    @pytest.mark.parametrize("mixes", [True, False])
    def test_answers_continue_while_prompts_arrive(self, mixes: bool) -> None:
        """Answers continue although a new prompt arrives in every step."""
        limits = dataclasses.replace(LIMITS, mixes_prefill_and_decode=mixes)
        simulation = Simulation(self.make(), limits, cost=StepCost())
        answers = [new_sequence([n] * 5, max_tokens=40) for n in range(3)]
        for sequence in answers:
            simulation.add(sequence)
        while not all(sequence.output_ids for sequence in answers):
            simulation.step()
        for number in range(MOST_STEPS):
            if simulation.scheduler.num_waiting < 8:
                simulation.add(new_sequence(range(100 * number, 100 * number + 20), max_tokens=1))
            simulation.step()
        lengths = [len(sequence.output_ids) for sequence in answers]
        assert lengths == [40] * 3, f"answers stand still while prompts come: {lengths}"
        simulation.run()
        simulation.check_empty()

    # In what order

    def test_only_order_is_ignored(self) -> None:
        """Nothing else may be ignored."""
        assert self.ignores <= ORDERS, "it ignores what is neither priority nor arrival"

    def test_higher_priority_runs_first(self) -> None:
        """The smaller the number, which may be negative, and of any size."""
        self.keeps("priority")
        for priorities in (
            [3, 1, 2, 1, 0, 3, 2, 0],
            [-3, -100, 100, 0, -(2**63), 2**63 - 1, -101, 99],
        ):
            found = [priorities[number] for number in self._served(priorities)]
            assert found == sorted(found), "smaller priorities run first: or name it in `ignores`"

    def test_equal_priorities_run_in_order_of_arrival(self) -> None:
        """Whatever their prompts."""
        self.keeps("arrival")
        found = self._served([0] * 8)
        assert found == sorted(found), "the first come is served first: or name it in `ignores`"

    @examples
    @given(
        work=st.lists(st.tuples(jobs(), st.integers(0, 9)), min_size=2, max_size=10),
        limits=engine_limits(),
    )
    def test_a_sequence_without_room_is_not_overtaken(
        self, work: list[tuple[Job, int]], limits: EngineLimits
    ) -> None:
        """Smaller prompts that would fit wait behind it, or it would wait for ever.

        Nor does a sequence lose its room while one of a lower rank keeps it.
        """
        self.keeps("arrival")
        uses_priority = "priority" not in self.ignores
        simulation = self.simulation(dataclasses.replace(limits, prefix_block_tokens=0))
        ranks: dict[Sequence, tuple[int, int]] = {}
        for number in range(MOST_STEPS):
            for job, arrival in work:
                if arrival == number:
                    sequence = job.make(atomic=False)
                    ranks[sequence] = (uses_priority * sequence.priority, len(ranks))
                    simulation.add(sequence)
            waiting = {s for s in simulation.unfinished if s not in simulation.cache.reserved}
            step = simulation.step()
            ran = {item.sequence for item in step.items}
            admitted = waiting & (ran | simulation.cache.reserved.keys())
            left = [ranks[each] for each in waiting - admitted - set(step.preempted)]
            assert all(ranks[each] < min(left, default=ranks[each]) for each in admitted if left), (
                "a sequence is admitted before one of a higher rank: or name the order in `ignores`"
            )
            lost = [ranks[each] for each in step.preempted]
            kept = [rank for each, rank in ranks.items() if each in simulation.cache.reserved]
            assert max(kept, default=(0, -1)) < min(lost, default=NO_RANK), (
                "a sequence is preempted before one of a lower rank: or name the order in `ignores`"
            )
            if len(ranks) == len(work) and not simulation.unfinished:
                break
        simulation.check_empty()

    def test_priorities_that_it_says_it_ignores_change_nothing(self) -> None:
        """Clients are told that it has no effect."""
        if "priority" not in self.ignores:
            pytest.skip("this scheduler serves by priority")
        orders = [self._served(priorities) for priorities in ([0] * 8, [*range(8)][::-1], range(8))]
        assert orders[1] == orders[2] == orders[0]

    def test_plans_do_not_read_a_clock(self) -> None:
        """A clock that jumps by an hour changes nothing: durations come with ``commit``."""
        orders = []
        for pace_s in (0, 3600):
            look = map(float, itertools.count(10**6, pace_s)).__next__
            with pytest.MonkeyPatch.context() as patch:
                for name in CLOCKS:
                    patch.setattr(time, name, look)
                orders.append(self._served([1, 0, 1, 0, 1, 1, 0, 0]))
        assert orders[0] == orders[1]

    def _served(self, priorities: Seq[int]) -> list[int]:
        """Return the indexes of sequences in the order of their first tokens, with one slot."""
        simulation = self.simulation(dataclasses.replace(LIMITS, max_sequences=1))
        simulation.add(new_sequence([99] * 5, max_tokens=10))
        simulation.step()
        lengths = [9, 3, 12, 5, 7, 4, 11, 6]
        waiting = [
            new_sequence([number] * length, priority=priority, max_tokens=2)
            for number, (length, priority) in enumerate(zip(lengths, priorities, strict=True))
        ]
        for sequence in waiting:
            simulation.add(sequence)
        served: list[Sequence] = []
        while simulation.unfinished:
            simulation.step()
            served += [s for s in waiting if s.output_ids and s not in served]
        return [sequence.prompt.token_ids[0] for sequence in served]

    # How long

    @pytest.mark.parametrize("mixes", [True, False])
    def test_a_long_prompt_stops_no_answer(self, mixes: bool) -> None:
        """If steps have a time budget: a reader waits for few such steps."""
        if self.step_budget_s is None:
            pytest.skip("this scheduler has no bound on the time of a step")
        limits = dataclasses.replace(LONG_LIMITS, mixes_prefill_and_decode=mixes)
        cost = StepCost(token_s=self.step_budget_s / 50)
        simulation = Simulation(self.make(), limits, cost=cost)
        simulation.add(new_sequence(range(30), max_tokens=400))
        for number in range(5):
            simulation.step()
            simulation.add(new_sequence(range(1000 * number, 1000 * number + 900), max_tokens=3))
        simulation.run()
        assert simulation.waits.longest_gap_s < 3 * self.step_budget_s
