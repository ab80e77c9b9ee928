"""Scores of continuations by the model's own log-probabilities. Plain values."""

from dataclasses import dataclass

from vlmkit.types.sample import Sample


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probabilities of one continuation.

    Attributes:
        text: the continuation.
        samples: its tokens, each with its log-probability given all tokens before it.
    """

    text: str
    samples: tuple[Sample, ...]

    @property
    def logprob(self) -> float:
        """The log-probability of the whole continuation: the sum over its tokens."""
        return sum(sample.logprob or 0.0 for sample in self.samples)
