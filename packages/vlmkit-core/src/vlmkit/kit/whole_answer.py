"""Joins the chunks of an answer to a completion."""

from collections.abc import Iterable

from vlmkit.types.completion import Choice, Chunk
from vlmkit.types.delta import Delta, reasoning_of, text_of, tool_calls_of
from vlmkit.types.sample import Sample


class WholeAnswer:
    """Joins the chunks of an answer; texts are joined last, so a long one is copied once."""

    def __init__(self, num_choices: int) -> None:
        self._choices = [Choice() for _ in range(num_choices)]
        self._deltas: list[list[Delta]] = [[] for _ in range(num_choices)]

    @property
    def samples(self) -> list[list[Sample]]:
        """The tokens of each choice so far."""
        return [choice.samples for choice in self._choices]

    @property
    def num_samples(self) -> int:
        """How many tokens there are so far."""
        return sum(map(len, self.samples))

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add the next chunks, of any choices."""
        for chunk in chunks:
            choice = self._choices[chunk.index]
            self._deltas[chunk.index].extend(chunk.deltas)
            choice.samples.extend(chunk.samples)
            choice.finish_reason = chunk.finish_reason or choice.finish_reason
            choice.stop_string = chunk.stop_string or choice.stop_string
            choice.places = chunk.places or choice.places
            if chunk.embedding is not None:
                choice.embedding = chunk.embedding

    def choices(self) -> list[Choice]:
        """Return all choices with their texts."""
        for choice, deltas in zip(self._choices, self._deltas, strict=True):
            choice.text = text_of(deltas)
            choice.reasoning = reasoning_of(deltas)
            choice.tool_calls = tool_calls_of(deltas)
        return self._choices
