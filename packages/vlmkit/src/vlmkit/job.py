"""One sequence in the loop's hands: its text as it grows, and where its chunks go."""

from dataclasses import dataclass

from vlmkit.channel import Channel
from vlmkit.completion import FinishReason
from vlmkit.sequence import Sequence
from vlmkit.text import AnswerText


@dataclass(slots=True, eq=False)
class Job:
    """One choice of a request.

    Attributes:
        sequence: its tokens.
        text: its text.
        channel: where its chunks go; choices of one request share it.
        index: which choice it is.
    """

    sequence: Sequence
    text: AnswerText
    channel: Channel
    index: int

    def take(self, token_id: int) -> tuple[str, FinishReason | None]:
        """Append a chosen token; return what it adds to the text, and why the answer ends if so."""
        sequence = self.sequence
        sequence.output_ids.append(token_id)
        is_eos = token_id in sequence.eos_ids and not sequence.params.ignore_eos
        is_longest = len(sequence.output_ids) >= sequence.max_tokens
        text = "" if is_eos else self.text.push(token_id)
        if is_eos or is_longest:
            text += self.text.finish()
        if is_eos or self.text.is_stopped:
            return text, "stop"
        return text, "length" if is_longest else None
