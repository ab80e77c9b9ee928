"""Simulated time: how long steps take on a simulated engine, and how long readers wait."""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field

from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem


def no_time(items: Seq[WorkItem]) -> float:  # noqa: ARG001 - as any other cost
    """Return the duration of a step that takes no time."""
    return 0.0


@dataclass(frozen=True)
class StepCost:
    """The duration of a step on an engine that reads its weights once for each step.

    Attributes:
        fixed_s: for each step.
        row_s: for each decoded token.
        token_s: for each prompt token.
        noise: returns a factor for each step; none by default.
    """

    fixed_s: float = 0.02
    row_s: float = 0.001
    token_s: float = 0.002
    noise: Callable[[], float] = lambda: 1.0

    def __call__(self, items: Seq[WorkItem]) -> float:
        """Return the seconds of a step; call it before the step is committed."""
        num_prompt = sum(item.num_tokens for item in items if item.sequence.is_prefilling)
        num_rows = sum(not item.sequence.is_prefilling for item in items)
        cost_s = self.fixed_s + num_rows * self.row_s + num_prompt * self.token_s
        return cost_s * self.noise()


@dataclass
class Waits:
    """How long readers wait, by the simulated clock.

    Attributes:
        first_s: from the request until the first token of each answer.
        longest_gap_s: between two tokens of one answer.
    """

    first_s: dict[Sequence, float] = field(default_factory=dict)
    longest_gap_s: float = 0.0
    _asked_s: dict[Sequence, float] = field(default_factory=dict)
    _last_s: dict[Sequence, float] = field(default_factory=dict)

    def ask(self, sequence: Sequence, now_s: float) -> None:
        """Record a request."""
        self._asked_s[sequence] = now_s

    def token(self, sequence: Sequence, now_s: float) -> None:
        """Record a token."""
        self.first_s.setdefault(sequence, now_s - self._asked_s[sequence])
        gap_s = now_s - self._last_s.get(sequence, now_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        self._last_s[sequence] = now_s
