"""What every scheduler must do."""

import dataclasses
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from vlmkit.errors import QueueFull
from vlmkit.seams.engine import EngineLimits
from vlmkit.seams.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.seams.scheduler import Scheduler
from vlmkit.seams.sequence import Sequence
from vlmkit.testing.played_time import StepCost
from vlmkit.testing.scheduler_simulation import Simulation
from vlmkit.testing.sequences import new_sequence

NUM_SLOT_TOKENS = 6
LIMITS = EngineLimits(
    vocab_size=1000,
    max_sequence_tokens=64,
    max_sequences=8,
    capacity_tokens=256,
    max_chunk_tokens=64,
    mixes_prefill_and_decode=True,
    prefix_block_tokens=4,
)

examples = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Job:
    """A sequence to be, so that it can be made twice."""

    num_tokens: int
    max_tokens: int
    image_starts: tuple[int, ...]
    priority: int
    first_token: int

    def make(self, *, atomic: bool) -> Sequence:
        """Return a fresh sequence; its images are atomic spans if wanted."""
        spans = [Span(start, start + NUM_SLOT_TOKENS) for start in self.image_starts]
        slots = [MediaSlot(*span, bytes([i]) * 32, {}, 4) for i, span in enumerate(spans)]
        token_ids = (self.first_token, *range(1, self.num_tokens))
        return new_sequence(
            Prompt(token_ids, tuple(slots)),
            max_tokens=self.max_tokens,
            priority=self.priority,
            plan=PromptPlan(tuple(spans) if atomic else ()),
        )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Prompts of 1 to 48 tokens with up to three images that do not overlap."""
    num_tokens = draw(st.integers(1, 48))
    places = range(1, num_tokens - NUM_SLOT_TOKENS, NUM_SLOT_TOKENS + 1)
    chosen = draw(st.sets(st.sampled_from(places), max_size=3)) if places else set()
    return Job(
        num_tokens=num_tokens,
        max_tokens=draw(st.integers(1, 15)),
        image_starts=tuple(sorted(chosen)),
        priority=draw(st.integers(0, 2)),
        first_token=draw(st.sampled_from([0, 0, 500])),
    )


@st.composite
def engine_limits(draw: st.DrawFn) -> EngineLimits:
    """Engines that have room for any one job, and not for many."""
    return dataclasses.replace(
        LIMITS,
        max_sequences=draw(st.integers(1, 6)),
        capacity_tokens=draw(st.sampled_from([64, 80, 160])),
        max_chunk_tokens=draw(st.sampled_from([NUM_SLOT_TOKENS, 17, 64])),
        mixes_prefill_and_decode=draw(st.booleans()),
        prefix_block_tokens=draw(st.sampled_from([0, 4])),
    )


def _wants_rows(sequence: Sequence, kind: str) -> None:
    """Let a sequence end with its prefill, for the rows that a kind of reading is after."""
    length, num_given = len(sequence), sequence.max_tokens
    sequence.task, sequence.max_tokens = ("score" if kind == "score" else "embed"), 0
    if kind == "score":
        sequence.given = tuple(range(100, 100 + num_given))
        sequence.output_ids = list(sequence.given[:-1])
    rows = {"last": (length - 1, length), "mean": (0, length), "cls": (0, 1)}
    sequence.wanted = Span(*rows.get(kind, (length - 1, len(sequence))))


def finish(simulation: Simulation, work: list[Job], *, atomic: bool = False) -> None:
    """Run jobs together; fail unless each has its whole answer in the end, and nothing is left."""
    sequences = [job.make(atomic=atomic) for job in work]
    for sequence in sequences:
        simulation.add(sequence)
    simulation.run()
    assert [len(s.output_ids) for s in sequences] == [job.max_tokens for job in work]
    simulation.check_empty()


class SchedulerContract:
    """Inherit, override :meth:`make`, and run pytest.

    Attributes:
        max_step_tokens: what :meth:`make` was told to compute at most in a step; None if it has no
            such bound.
        step_budget_s: how long answers may wait for prompts, likewise.
    """

    max_step_tokens: int | None = None
    step_budget_s: float | None = None

    def make(self) -> Scheduler:
        """Return a fresh scheduler whose queue holds at least 16."""
        raise NotImplementedError

    def simulation(self, limits: EngineLimits = LIMITS, *, encoder_steps: int = 0) -> Simulation:
        """Return a loop around a fresh scheduler."""
        return Simulation(self.make(), limits, encoder_steps=encoder_steps)

    def test_an_idle_scheduler_plans_nothing(self) -> None:
        """An empty step, not an error."""
        step = self.simulation().step()
        assert (step.encodes, step.items, step.preempted) == ((), (), ())

    def test_a_full_queue_refuses_and_keeps_what_it_has(self) -> None:
        """The bound is the one that it states; who was refused leaves no trace."""
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
    def test_every_sequence_finishes(
        self, work: list[Job], limits: EngineLimits, atomic: bool, encoder_steps: int
    ) -> None:
        """The simulation checks every rule in every step; nobody starves and nothing is left."""
        finish(self.simulation(limits, encoder_steps=encoder_steps), work, atomic=atomic)

    @examples
    @given(
        work=st.lists(jobs(), min_size=1, max_size=8),
        limits=engine_limits(),
        num_drafts=st.integers(1, 5),
        max_draft_tokens=st.integers(0, 3),
    )
    def test_drafts_take_nobodys_place(
        self, work: list[Job], limits: EngineLimits, num_drafts: int, max_draft_tokens: int
    ) -> None:
        """They may be taken or left; whoever ran without them runs with them."""
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
    def test_who_ends_with_the_prefill_gets_each_wanted_row_once(
        self,
        work: list[tuple[Job, str]],
        limits: EngineLimits,
        max_item_rows: int,
        atomic: bool,
    ) -> None:
        """Beside answers, in small pieces if the engine gives few rows, and preempted like them."""
        simulation = self.simulation(replace(limits, max_item_rows=max_item_rows))
        for job, kind in work:
            sequence = job.make(atomic=atomic)
            if kind:
                _wants_rows(sequence, kind)
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
        """No clock and no chance: the same arrivals and durations give the same steps."""
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
    def test_whoever_is_taken_out_leaves_nothing_behind(
        self, work: list[tuple[Job, int]], limits: EngineLimits, encoder_steps: int
    ) -> None:
        """At any moment: waiting, reading, or in the middle of an answer."""
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
    @given(work=st.lists(jobs(), min_size=1, max_size=8))
    def test_a_step_keeps_to_its_budget(self, work: list[Job]) -> None:
        """Checked only where there is one."""
        if self.max_step_tokens is None:
            pytest.skip("this scheduler has no bound on the tokens of a step")
        simulation = self.simulation()
        for job in work:
            simulation.add(job.make(atomic=False))
        while simulation.unfinished:
            assert 1 <= simulation.step().num_tokens <= self.max_step_tokens

    def test_several_sequences_run_together(self) -> None:
        """Batching is what a scheduler is for."""
        simulation = self.simulation()
        for _ in range(4):
            simulation.add(new_sequence(range(5), max_tokens=10))
        simulation.run()
        assert max(map(len, simulation.trace)) == 4

    def test_a_newcomer_does_not_wait_for_the_others_to_finish(self) -> None:
        """Continuous batching: who comes later joins, and the first goes on."""
        simulation = self.simulation()
        first, later = (new_sequence(range(5), max_tokens=30) for _ in range(2))
        simulation.add(first)
        for _ in range(5):
            simulation.step()
        simulation.add(later)
        for _ in range(10):
            simulation.step()
        assert later.output_ids
        assert len(first.output_ids) > 5

    def test_an_image_that_is_being_encoded_keeps_nobody_waiting(self) -> None:
        """Who shows it waits; who came before and who comes later goes on."""
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

    def test_a_held_sequence_rests_until_it_is_let_go(self) -> None:
        """Its reader is behind; others go on."""
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

    def test_a_full_cache_delays_but_loses_nobody(self) -> None:
        """Room for two answers, asked by four."""
        limits = dataclasses.replace(LIMITS, capacity_tokens=64, prefix_block_tokens=0)
        simulation = self.simulation(limits)
        sequences = [new_sequence([n] * 20, max_tokens=20) for n in range(4)]
        for sequence in sequences:
            simulation.add(sequence)
        simulation.run()
        assert [len(s.output_ids) for s in sequences] == [20] * 4
        simulation.check_empty()

    def test_a_cached_prefix_is_not_computed_again(self) -> None:
        """What the engine found in its cache is left out of the plan."""
        simulation = self.simulation()
        for _ in range(2):
            simulation.add(sequence := new_sequence(range(33), max_tokens=1))
            simulation.run()
        assert sequence.num_cached_tokens == 32, "what the first admit() found is noted nowhere"
        assert simulation.trace[-1] == [(1, 32, 33)]

    def test_a_common_beginning_is_computed_once(self) -> None:
        """Those who ask at once share it too, whatever they ask after it."""
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

    def test_others_overtake_those_who_wait_to_share(self) -> None:
        """What is shared is no reason for anybody else to wait."""
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
    def test_who_waits_to_share_outlives_the_one_who_computes(self, fate: str) -> None:
        """One that is taken out, or does not go on, frees those who wait for it."""
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

    @pytest.mark.parametrize("mixes", [True, False])
    def test_a_long_prompt_stops_no_answer(self, mixes: bool) -> None:
        """Checked only where a step has a budget of time: a reader waits for few such steps."""
        if self.step_budget_s is None:
            pytest.skip("this scheduler has no bound on the time of a step")
        limits = dataclasses.replace(
            LIMITS,
            mixes_prefill_and_decode=mixes,
            max_sequence_tokens=4096,
            max_chunk_tokens=1024,
            capacity_tokens=2**14,
        )
        cost = StepCost(token_s=self.step_budget_s / 50)
        simulation = Simulation(self.make(), limits, cost=cost)
        simulation.add(new_sequence(range(30), max_tokens=400))
        for number in range(5):
            simulation.step()
            simulation.add(new_sequence(range(1000 * number, 1000 * number + 900), max_tokens=3))
        simulation.run()
        assert simulation.waits.longest_gap_s < 3 * self.step_budget_s
