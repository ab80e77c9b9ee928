"""The scheduler keeps vlmkit's contract, and serves who asks little first."""

from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit_testing import SchedulerContract, new_sequence
from vlmkit_yourname.plugin import ShortestFirst, ShortestSettings


class TestShortestFirst(SchedulerContract):
    max_step_tokens = 16
    step_budget_s = 0.2

    def make(self) -> Scheduler:
        return ShortestFirst(ShortestSettings(max_step_tokens=16))


def order(*sequences: Sequence, long_tokens: int = 32768) -> list[Sequence]:
    """Return sequences in the order of the queue."""
    scheduler = ShortestFirst(ShortestSettings(long_tokens=long_tokens))
    for sequence in sequences:
        scheduler.add(sequence)
    return sorted(sequences, key=lambda sequence: sequence.priority)


def test_a_short_prompt_overtakes_a_long_one() -> None:
    long, short = new_sequence(range(90)), new_sequence(range(9))
    assert order(long, short) == [short, long]


def test_a_higher_priority_overtakes_a_short_prompt() -> None:
    short, urgent = new_sequence(range(9)), new_sequence(range(90), priority=-1)
    assert order(short, urgent) == [urgent, short]


def test_long_prompts_are_equal() -> None:
    longest, long = new_sequence(range(90)), new_sequence(range(80))
    assert order(longest, long, long_tokens=50) == [longest, long]
