"""Time as it is played: what steps take on an engine that is not there, what readers wait for."""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field

from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem


def no_time(items: Seq[WorkItem]) -> float:  # noqa: ARG001 - as any other cost
    """Return the seconds of a step on an engine that takes none."""
    return 0.0


@dataclass(frozen=True)
class StepCost:
    """What steps take on an engine that reads its weights once for each.

    Attributes:
        fixed_s: for anything at all.
        row_s: for each answer that grows.
        token_s: for each token of a prompt.
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
    """What readers wait for, by the played clock.

    Attributes:
        first_s: until the first token of each answer, from when it was asked for.
        longest_gap_s: between two tokens of one answer.
    """

    first_s: dict[Sequence, float] = field(default_factory=dict)
    longest_gap_s: float = 0.0
    _asked_s: dict[Sequence, float] = field(default_factory=dict)
    _last_s: dict[Sequence, float] = field(default_factory=dict)

    def ask(self, sequence: Sequence, now_s: float) -> None:
        """Note that an answer is asked for."""
        self._asked_s[sequence] = now_s

    def token(self, sequence: Sequence, now_s: float) -> None:
        """Note that a token of it is handed out."""
        self.first_s.setdefault(sequence, now_s - self._asked_s[sequence])
        gap_s = now_s - self._last_s.get(sequence, now_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        self._last_s[sequence] = now_s
