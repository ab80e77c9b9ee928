"""What every scheduler must do under load: keep order, pace, budgets and memory."""

import dataclasses
import gc
import tracemalloc
from collections.abc import Sequence as Seq

import pytest

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.scheduler_simulation import Simulation
from vlmkit_testing.contracts.scheduler_subject import (
    LIMITS,
    LONG_LIMITS,
    NUM_SLOT_TOKENS,
    SchedulerSubject,
)
from vlmkit_testing.contracts.sequences import new_sequence
from vlmkit_testing.contracts.simulated_time import StepCost, Waits

NUM_SETTLE_STEPS, NUM_STEPS = 15, 40  # after the engine changes its speed
NUM_WARM, NUM_SEQUENCES, MAX_LEFT_BYTES = 60, 250, 20_000


class SchedulerLoadContract(SchedulerSubject):
    """The part of the contract about full caches, slow engines and long runs."""

    def test_a_preempted_sequence_keeps_its_rank(self) -> None:
        """It keeps its arrival: otherwise it starves while others arrive."""
        self.keeps("arrival")
        limits = dataclasses.replace(LIMITS, capacity_tokens=64, prefix_block_tokens=0)
        simulation = self.simulation(limits)
        arrivals = [new_sequence([number] * 22, max_tokens=30) for number in range(2)]
        arrivals += [new_sequence([number] * 20, max_tokens=8) for number in range(2, 6)]
        for number, sequence in enumerate(arrivals):
            simulation.add(sequence)
            if number == 1:
                simulation.step()
        while simulation.unfinished:
            before = set(simulation.cache.reserved)
            simulation.step()
            had_room = simulation.cache.reserved
            for number, sequence in enumerate(arrivals):
                if sequence in had_room and sequence not in before:
                    waiting = [s for s in arrivals[:number] if s in simulation.unfinished]
                    assert all(earlier in had_room for earlier in waiting), (
                        "a sequence that arrived later runs before a preempted one"
                    )
        simulation.check_empty()

    @pytest.mark.parametrize("mixes", [True, False])
    def test_answers_keep_their_pace_when_an_engine_changes_its_speed(self, mixes: bool) -> None:
        """If steps have a time budget, it follows an engine that becomes slower, or faster."""
        if self.step_budget_s is None:
            pytest.skip("this scheduler has no bound on the time of a step")
        limits = dataclasses.replace(LONG_LIMITS, mixes_prefill_and_decode=mixes)
        speed = [self.step_budget_s / 50]

        def cost(items: Seq[WorkItem]) -> float:
            return StepCost(token_s=speed[0])(items)

        simulation = Simulation(self.make(), limits, cost=cost)
        answer = new_sequence(range(30), max_tokens=4000)
        simulation.add(answer)
        for change in (50, 12, 100, 15):
            speed[0] = self.step_budget_s / change
            for number in range(NUM_SETTLE_STEPS + NUM_STEPS):
                if number == NUM_SETTLE_STEPS:
                    simulation.waits.longest_gap_s = 0.0
                if not any(each.is_prefilling for each in simulation.unfinished):
                    first = 1000 * (change + number)
                    simulation.add(new_sequence(range(first, first + 900), max_tokens=2))
                simulation.step()
            assert simulation.waits.longest_gap_s < 3 * self.step_budget_s, (
                f"an answer waits too long for prompts at {speed[0]:.2g} s for each of their tokens"
            )
        assert answer.output_ids

    @pytest.mark.parametrize("encoder_steps", [0, 2])
    def test_media_keep_to_the_budget_of_the_encoder(self, encoder_steps: int) -> None:
        """Those that are encoded at once, except for one medium that is larger."""
        if self.max_encoder_tokens is None:
            pytest.skip("max_encoder_tokens states no bound for media")
        simulation = self.simulation(encoder_steps=encoder_steps)
        for number in range(6):
            simulation.add(_pictured(number, num_media=1 + number % 3))
        while simulation.unfinished:
            before = set(simulation.encoding)
            step = simulation.step()
            media = [each.sequence.prompt.media[each.index] for each in before.union(step.encodes)]
            num_tokens = sum(slot.encoder_tokens for slot in media)
            assert len(media) <= 1 or num_tokens <= self.max_encoder_tokens, (
                f"{num_tokens} tokens of {len(media)} media are encoded at once"
            )
        simulation.check_empty()

    def test_memory_does_not_grow_with_the_sequences(self) -> None:
        """A server runs for months: of a sequence that ended, nothing is left."""
        simulation = self.simulation()

        def serve(numbers: Seq[int]) -> None:
            for number in numbers:
                tokens = [number % 2**15, number // 2**15, *range(18 + number % 9)]
                simulation.add(new_sequence(tokens, max_tokens=2))
                if len(simulation.unfinished) > 5:
                    simulation.step()
                if number % 5 == 0:
                    simulation.end(simulation.unfinished[-1])
            simulation.run()
            simulation.trace.clear()
            simulation.waits = Waits()
            gc.collect()

        serve(range(NUM_WARM))
        tracemalloc.start()
        try:
            serve(range(NUM_WARM, 2 * NUM_WARM))
            before = tracemalloc.get_traced_memory()[0]
            serve(range(2 * NUM_WARM, 2 * NUM_WARM + NUM_SEQUENCES))
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < MAX_LEFT_BYTES


def _pictured(number: int, *, num_media: int) -> Sequence:
    """Return a sequence with media of its own, each of four tokens for the encoder."""
    slots = tuple(
        MediaSlot(start, start + NUM_SLOT_TOKENS, bytes([number, index]) * 16, {}, 4)
        for index, start in enumerate(range(1, 1 + 8 * num_media, 8))
    )
    return new_sequence(Prompt(tuple(range(2 + 8 * num_media)), slots), max_tokens=3)
