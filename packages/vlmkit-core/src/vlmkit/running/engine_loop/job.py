"""A sequence in the loop, and how the outcomes of its steps become chunks for its reader."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from vlmkit.checkpoints.pooling import Pooled
from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.engine_loop.channel import Channel
from vlmkit.running.engine_loop.grounding import AnswerGrounding
from vlmkit.running.engine_loop.step_executor import Outcome
from vlmkit.types.completion import Chunk, FinishReason
from vlmkit.types.delta import Delta
from vlmkit.types.sampling import SamplingParams


@dataclass(slots=True, eq=False)
class Job(ABC):
    """One choice of a request.

    Attributes:
        sequence: its tokens.
        channel: the buffer for its chunks, which the choices of one request share.
        index: the index of the choice.
    """

    sequence: Sequence
    channel: Channel
    index: int

    @abstractmethod
    def take(self, outcome: Outcome) -> list[Chunk]:
        """Take the outcome of an item; return the new chunks."""


@dataclass(slots=True, eq=False)
class AnswerJob(Job):
    """A sequence that generates an answer.

    Attributes:
        text: the text of the answer.
        places: finds the regions that it names; None if the request does not want them.
    """

    text: AnswerText
    places: AnswerGrounding | None = None

    def take(self, outcome: Outcome) -> list[Chunk]:
        """Append the sampled tokens, up to the end of the answer."""
        chunks: list[Chunk] = []
        for sample in outcome.samples:
            deltas, reason = self._append(sample.token_id)
            if self.places is not None:
                self.places.push(sample.token_id)
            if reason is not None:
                stop = self.text.stop_string
                found = self.places.found() if self.places is not None else ()
                chunks.append(
                    Chunk(self.index, deltas, (sample,), reason, stop_string=stop, places=found)
                )
                break
            chunks.append(Chunk(self.index, deltas, (sample,)))
        return chunks

    def _append(self, token_id: int) -> tuple[tuple[Delta, ...], FinishReason | None]:
        """Append a token; return its deltas, and the finish reason if the answer ends."""
        sequence = self.sequence
        sequence.output_ids.append(token_id)
        is_end = token_id in sequence.eos_ids and _ends(token_id, sequence.params)
        is_longest = len(sequence.output_ids) >= sequence.max_tokens
        is_shown = not is_end or sequence.params.include_stop_str_in_output
        deltas = self.text.push(token_id) if is_shown else ()
        if is_end or is_longest:
            deltas += self.text.finish()
        if is_end or self.text.stop_string is not None:
            return deltas, "stop"
        return deltas, "length" if is_longest else None


def _ends(token_id: int, params: SamplingParams) -> bool:
    """Return whether an end token ends this answer."""
    return not params.ignore_eos or token_id in params.stop_token_ids


@dataclass(slots=True, eq=False)
class ReadingJob(Job):
    """A sequence that embeds or scores a given text: it ends with the last wanted row.

    Attributes:
        pooled: pools the hidden states into a vector; None for scores.
    """

    pooled: Pooled | None

    def take(self, outcome: Outcome) -> list[Chunk]:
        """Take the rows, which are computed once; return scores as they come."""
        sequence, stop = self.sequence, outcome.item.stop
        rows = sequence.rows
        if outcome.item.start > rows.start:
            raise EngineError("the engine's cache passed over a token whose row is wanted")
        sequence.wanted = Span(max(rows.start, stop), rows.stop)
        is_over = stop >= rows.stop
        if self.pooled is not None and outcome.item.num_rows:
            self.pooled.add(outcome.states)
        if not is_over:
            return [Chunk(self.index, (), outcome.samples)] if outcome.samples else []
        vector = self.pooled.vector() if self.pooled is not None else None
        return [Chunk(self.index, (), outcome.samples, "stop", vector)]
