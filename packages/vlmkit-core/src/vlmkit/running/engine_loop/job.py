"""A sequence in the loop, and how the outcomes of its steps become chunks for its reader.

A step consists of items, one for each sequence that it computes. The loop passes the outcome of
each item to the sequence's job. :mod:`vlmkit.running.engine_loop.active_jobs` sends the chunks that
the job returns, and ends a sequence whose chunk has a finish reason.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from vlmkit.checkpoints.pooling import Pooled
from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.engine_loop.grounding import AnswerGrounding
from vlmkit.running.engine_loop.step_executor import Outcome
from vlmkit.running.engine_loop.stream import Channel
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
        """Add the outcome of the sequence's part of a step; return the new chunks."""


@dataclass(slots=True, eq=False)
class AnswerJob(Job):
    """A sequence that generates an answer.

    Attributes:
        text: the text of the answer.
        grounding: finds the boxes and points that it names; None if the request does not want them.
    """

    text: AnswerText
    grounding: AnswerGrounding | None = None

    def take(self, outcome: Outcome) -> list[Chunk]:
        """Append the sampled tokens, up to the end of the answer."""
        chunks: list[Chunk] = []
        for sample in outcome.samples:
            deltas, reason = self._append(sample.token_id)
            if self.grounding is not None:
                self.grounding.push(sample.token_id)
            if reason is None:
                chunks.append(Chunk(self.index, deltas, (sample,)))
                continue
            chunks.append(
                Chunk(
                    self.index,
                    deltas,
                    (sample,),
                    finish_reason=reason,
                    stop_string=self.text.stop_string,
                    places=self.grounding.found() if self.grounding is not None else (),
                )
            )
            break
        return chunks

    def _append(self, token_id: int) -> tuple[tuple[Delta, ...], FinishReason | None]:
        """Append a token; return its deltas, and the finish reason if the answer ends."""
        sequence = self.sequence
        sequence.output_ids.append(token_id)
        is_end = token_id in sequence.eos_ids and not _is_ignored(token_id, sequence.params)
        is_at_limit = len(sequence.output_ids) >= sequence.max_tokens
        is_shown = not is_end or sequence.params.include_stop_str_in_output
        deltas = self.text.push(token_id) if is_shown else ()
        if is_end or is_at_limit:
            deltas += self.text.finish()
        if is_end or self.text.stop_string is not None:
            return deltas, "stop"
        return deltas, "length" if is_at_limit else None


def _is_ignored(token_id: int, params: SamplingParams) -> bool:
    """Return whether the request ignores an end token; it ignores no stop token of its own."""
    return params.ignore_eos and token_id not in params.stop_token_ids


@dataclass(slots=True, eq=False)
class PrefillJob(Job):
    """A sequence that embeds or scores a given text, and samples nothing.

    It ends once the engine has computed the last wanted row: the hidden state of a position for a
    vector, or its logits for a score.

    Attributes:
        pooled: accumulates hidden states into a vector; None for scores.
    """

    pooled: Pooled | None

    def take(self, outcome: Outcome) -> list[Chunk]:
        """Add the rows of a chunk of the text; return its scores, or at the end the vector.

        Raises:
            EngineError: the engine skipped a token whose row is wanted.
        """
        sequence, stop = self.sequence, outcome.item.stop
        wanted = sequence.rows
        if outcome.item.start > wanted.start:
            raise EngineError("the engine's cache passed over a token whose row is wanted")
        sequence.wanted = Span(max(wanted.start, stop), wanted.stop)
        if self.pooled is not None and outcome.item.num_rows:
            self.pooled.add(outcome.states)
        if stop < wanted.stop:
            return [Chunk(self.index, samples=outcome.samples)] if outcome.samples else []
        vector = self.pooled.vector() if self.pooled is not None else None
        return [Chunk(self.index, samples=outcome.samples, finish_reason="stop", embedding=vector)]
