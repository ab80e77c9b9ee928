"""The subject of the scheduler contract: jobs, and engine limits to run them with."""

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit_testing.contracts.scheduler_simulation import Simulation
from vlmkit_testing.contracts.sequences import new_sequence

NUM_SLOT_TOKENS = 6
MAX_SPAN_TOKENS = 12
NUMS_ENCODED = (4, 3000, 5000)  # around small budgets of an encoder, and the usual one
LIMITS = EngineLimits(
    vocab_size=1000,
    max_sequence_tokens=64,
    max_sequences=8,
    capacity_tokens=256,
    max_chunk_tokens=64,
    mixes_prefill_and_decode=True,
    prefix_block_tokens=4,
)
LONG_LIMITS = dataclasses.replace(
    LIMITS, max_sequence_tokens=4096, max_chunk_tokens=1024, capacity_tokens=2**14
)
"""For prompts and answers that are long in comparison with a step."""
ORDERS = frozenset({"priority", "arrival"})
"""What a scheduler may say that it ignores."""


@dataclass(frozen=True)
class Job:
    """A description of a sequence, so that it can be created twice."""

    num_tokens: int
    max_tokens: int
    image_starts: tuple[int, ...]
    priority: int
    first_token: int

    def make(self, *, atomic: bool) -> Sequence:
        """Return a new sequence; its images may be atomic spans."""
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


@dataclass(frozen=True)
class Layout:
    """A description of a sequence whose atomic spans and media need not coincide.

    Attributes:
        num_tokens: length of the prompt.
        spans: the atomic spans; ordered, disjoint.
        media: the tokens of each medium, and how many it counts for in the encoder's budget.
        first_token: sequences with the same one may share a prefix.
    """

    num_tokens: int
    spans: tuple[Span, ...]
    media: tuple[tuple[Span, int], ...]
    first_token: int

    def make(self) -> Sequence:
        """Return a new sequence."""
        slots = [
            MediaSlot(*span, bytes([i, num_encoded % 256]) * 16, {}, 4, num_encoded=num_encoded)
            for i, (span, num_encoded) in enumerate(self.media)
        ]
        token_ids = (self.first_token, *range(1, self.num_tokens))
        plan = PromptPlan(self.spans)
        return new_sequence(Prompt(token_ids, tuple(slots)), max_tokens=3, plan=plan)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Prompts of 8 to 48 tokens: a span may have several media, part of one, or none."""
    num_tokens = draw(st.integers(8, 48))
    spans, media = (draw(_ranges(num_tokens, most)) for most in (MAX_SPAN_TOKENS, 6))
    return Layout(
        num_tokens=num_tokens,
        spans=spans,
        media=tuple((span, draw(st.sampled_from(NUMS_ENCODED))) for span in media),
        first_token=draw(st.sampled_from([0, 0, 500])),
    )


@st.composite
def _ranges(draw: st.DrawFn, num_tokens: int, most: int) -> tuple[Span, ...]:
    """Return disjoint ranges of a prompt, in order; some adjoin."""
    found, stop = [], 0
    lengths = st.tuples(st.integers(0, most), st.integers(1, most))
    for gap, length in draw(st.lists(lengths, min_size=1, max_size=6)):
        start, stop = stop + gap, stop + gap + length
        if stop <= num_tokens:
            found.append(Span(start, stop))
    return tuple(found)


@st.composite
def engine_limits(draw: st.DrawFn) -> EngineLimits:
    """Engines whose cache holds any one job, and not many."""
    return dataclasses.replace(
        LIMITS,
        max_sequences=draw(st.integers(1, 6)),
        capacity_tokens=draw(st.sampled_from([64, 80, 160])),
        max_chunk_tokens=draw(st.sampled_from([NUM_SLOT_TOKENS, 17, 64])),
        mixes_prefill_and_decode=draw(st.booleans()),
        prefix_block_tokens=draw(st.sampled_from([0, 4])),
    )


def wants_rows(sequence: Sequence, kind: str) -> None:
    """Make a sequence end with its prefill, for the rows of embeddings or scores."""
    length, num_given = len(sequence), sequence.max_tokens
    sequence.task, sequence.max_tokens = ("score" if kind == "score" else "embed"), 0
    if kind == "score":
        sequence.given = tuple(range(100, 100 + num_given))
        sequence.output_ids = list(sequence.given[:-1])
    rows = {"last": (length - 1, length), "mean": (0, length), "cls": (0, 1)}
    sequence.wanted = Span(*rows.get(kind, (length - 1, len(sequence))))


def finish(simulation: Simulation, work: list[Job], *, atomic: bool = False) -> None:
    """Run jobs together; fail unless each gets its whole answer, and nothing is left."""
    sequences = [job.make(atomic=atomic) for job in work]
    for sequence in sequences:
        simulation.add(sequence)
    simulation.run()
    assert [len(s.output_ids) for s in sequences] == [job.max_tokens for job in work]
    simulation.check_empty()


class SchedulerSubject:
    """What a scheduler's author provides. No tests.

    Attributes:
        max_step_tokens: the largest number of tokens that :meth:`make` allows in a step; None if
            there is no bound.
        max_encoder_tokens: the largest number of media tokens that are encoded at once, except for
            one medium that is larger; None if there is no bound.
        step_budget_s: how long answers may wait for prompts; None if there is no bound.
    """

    max_step_tokens: int | None = None
    max_encoder_tokens: int | None = None
    step_budget_s: float | None = None

    @property
    def ignores(self) -> frozenset[str]:
        """The orders that the scheduler states it ignores: ``priority``, ``arrival``, or both."""
        return frozenset(getattr(self.make(), "ignores", ()))

    def make(self) -> Scheduler:
        """Return a new scheduler whose queue holds at least 16 sequences."""
        raise NotImplementedError

    def simulation(self, limits: EngineLimits = LIMITS, *, encoder_steps: int = 0) -> Simulation:
        """Return a simulation with a new scheduler."""
        return Simulation(self.make(), limits, encoder_steps=encoder_steps)

    def keeps(self, order: str) -> None:
        """Skip a test if the scheduler ignores an order."""
        if order in self.ignores:
            pytest.skip(f"this scheduler says that it ignores {order}")
