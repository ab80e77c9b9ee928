"""How likely a continuation is, by the model's own log-probabilities. Plain values."""

from dataclasses import dataclass

from vlmkit.types.sample import Sample


@dataclass(frozen=True, slots=True)
class Score:
    """What a model makes of one continuation.

    Attributes:
        text: the continuation.
        samples: its tokens, each with its log-probability behind all that is before it.
    """

    text: str
    samples: tuple[Sample, ...]

    @property
    def logprob(self) -> float:
        """The log-probability of the whole continuation: the sum over its tokens."""
        return sum(sample.logprob or 0.0 for sample in self.samples)
