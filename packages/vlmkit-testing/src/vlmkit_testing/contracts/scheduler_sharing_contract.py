"""What every scheduler must do: compute shared prefixes once, and delay no other sequence."""

import dataclasses
import gc
import weakref
from itertools import permutations, product

import pytest

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit_testing.contracts.scheduler_subject import LIMITS, NUM_SLOT_TOKENS, SchedulerSubject
from vlmkit_testing.contracts.sequences import WatchedSequence, new_sequence
from vlmkit_testing.contracts.strict_cache import StrictCache


class SchedulerSharingContract(SchedulerSubject):
    """The part of the contract about shared prefixes and encoded media."""

    def test_a_cached_prefix_is_not_computed_again(self) -> None:
        """Cached tokens are not in the plan."""
        simulation = self.simulation()
        for _ in range(2):
            simulation.add(sequence := new_sequence(range(33), max_tokens=1))
            simulation.run()
        assert sequence.num_cached_tokens == 32, "what the first admit() found is noted nowhere"
        assert simulation.trace[-1] == [(1, 32, 33)]

    def test_a_common_beginning_is_computed_once(self) -> None:
        """Concurrent requests share it, too."""
        for mixes in (True, False):
            limits = dataclasses.replace(LIMITS, mixes_prefill_and_decode=mixes)
            simulation = self.simulation(limits)
            sequences = [new_sequence([*range(40), 500 + n], max_tokens=5) for n in range(4)]
            for sequence in sequences:
                simulation.add(sequence)
            simulation.run()
            assert [s.num_cached_tokens for s in sequences] == [0, 40, 40, 40], (
                "a sequence must wait while another one computes what it could share"
            )
            simulation.check_empty()

    def test_others_overtake_sequences_that_wait_to_share(self) -> None:
        """A shared prefix delays no other sequence."""
        simulation = self.simulation(encoder_steps=40)
        slot = MediaSlot(0, NUM_SLOT_TOKENS, bytes(32), {}, 4)
        prompt = Prompt(tuple(range(33)), (slot,))
        leader, follower = (new_sequence(prompt, max_tokens=3) for _ in range(2))
        other = new_sequence(range(500, 520), max_tokens=3)
        for sequence in (leader, follower, other):
            simulation.add(sequence)
        for _ in range(20):
            simulation.step()
        assert not leader.output_ids
        assert len(other.output_ids) == 3
        simulation.run()
        simulation.check_empty()

    @pytest.mark.parametrize("fate", ["ends", "is held", "waits for an image"])
    def test_waiting_to_share_ends_with_the_computing_sequence(self, fate: str) -> None:
        """A sequence that is removed or held frees those that wait for it."""
        limits = dataclasses.replace(LIMITS, max_chunk_tokens=17)
        simulation = self.simulation(limits, encoder_steps=40)
        slots = (MediaSlot(50, 56, bytes(32), {}, 4),) if fate == "waits for an image" else ()
        leader = new_sequence(Prompt(tuple(range(60)), slots), max_tokens=5)
        follower = new_sequence(range(50), max_tokens=5)
        simulation.add(leader)
        simulation.add(follower)
        while not leader.num_computed_tokens:
            simulation.step()
        if fate == "ends":
            simulation.end(leader)
        leader.is_held = fate == "is held"
        for _ in range(30):
            simulation.step()
        assert len(follower.output_ids) == 5
        leader.is_held = False
        simulation.run()
        simulation.check_empty()

    def test_sequences_that_share_are_released(self) -> None:
        """In whatever order they end, and whether or not their prefix was computed by then."""
        cases = list(product((0, 1, 2, 4), permutations(range(3))))
        served = [self._after_sharing(num_steps, order) for num_steps, order in cases]
        for scheduler, _ in served:
            scheduler.plan(StrictCache(LIMITS))
        gc.collect()
        for case, (_, refs) in zip(cases, served, strict=True):
            kept = [number for number, ref in enumerate(refs) if ref() is not None]
            assert not kept, f"the scheduler keeps the sequences {kept} after {case}"

    def _after_sharing(
        self, num_steps: int, order: tuple[int, ...]
    ) -> tuple[Scheduler, list[weakref.ref[WatchedSequence]]]:
        """Return a scheduler after sequences with one prefix ended, and references to them."""
        simulation = self.simulation(dataclasses.replace(LIMITS, max_chunk_tokens=17))
        sequences = [
            WatchedSequence.of(new_sequence([*range(50), 500 + number], max_tokens=5))
            for number in range(3)
        ]
        for sequence in sequences:
            simulation.add(sequence)
        for _ in range(num_steps):
            simulation.step()
        for number in order:
            if sequences[number] in simulation.unfinished:
                simulation.end(sequences[number])
            simulation.step()
        return simulation.scheduler, list(map(weakref.ref, sequences))

    def test_an_encoding_delays_no_other_sequence(self) -> None:
        """Only the sequence with the image waits."""
        for mixes in (True, False):
            limits = dataclasses.replace(LIMITS, mixes_prefill_and_decode=mixes)
            simulation = self.simulation(limits, encoder_steps=40)
            slot = MediaSlot(0, NUM_SLOT_TOKENS, bytes(32), {}, 4)
            before, later = (new_sequence(range(5), max_tokens=60) for _ in range(2))
            shows = new_sequence(Prompt(tuple(range(9)), (slot,)), max_tokens=3)
            simulation.add(before)
            simulation.step()
            simulation.add(shows)
            for _ in range(10):
                simulation.step()
            simulation.add(later)
            for _ in range(25):
                simulation.step()
            assert not shows.output_ids
            assert len(before.output_ids) > 15, "an answer stopped while an image was encoded"
            assert later.output_ids, "a newcomer waited until an image of another was encoded"
            simulation.run()
            assert len(shows.output_ids) == 3
            simulation.check_empty()
