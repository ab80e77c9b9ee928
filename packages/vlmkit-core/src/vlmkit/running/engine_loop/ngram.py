"""Guesses what follows by what followed the same few tokens before, in the prompt or the answer.

Prompt lookup (Saxena, 2023): answers repeat what they were asked about, names and numbers above
all. Costs a dictionary entry for each token and knows no model. The depth of a guess follows how
well the last ones did, so that an answer which repeats nothing is left alone.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from vlmkit.interfaces.sequence import Sequence
from vlmkit.settings.ngram import NgramSettings

NUM_READ_TOKENS = 2048  # of a long prompt, between two steps
MAX_REST_STEPS = 32


@dataclass(slots=True)
class _Memory:
    """What is known of one sequence.

    Attributes:
        follows: where what followed each few tokens begins, the newest place.
        num_read: tokens that ``follows`` has looked at.
        depth: guesses to make next.
        num_failures: guesses in a row of which nothing stood.
        num_rest: steps to sit out.
    """

    depth: int
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_read: int = 0
    num_failures: int = 0
    num_rest: int = 0


class NgramProposer:
    """Looks the newest tokens up among all earlier ones.

    Args:
        settings: how many tokens must agree, and how many are guessed.
    """

    def __init__(self, settings: NgramSettings | None = None) -> None:
        self._settings = settings or NgramSettings()
        self._memories: dict[Sequence, _Memory] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return what followed the newest tokens the last time; nothing if they are new."""
        memory = self._memories.setdefault(sequence, _Memory(self._settings.first_depth_tokens))
        place = self._read(sequence, memory)
        if memory.num_rest:
            memory.num_rest -= 1
            return ()
        if place is None:
            return ()
        followed = sequence.tokens(place, len(sequence))  # and then from its start: it goes round
        return [followed[i % len(followed)] for i in range(min(num_tokens, memory.depth))]

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Guess further after guesses that stood, and less or later after others."""
        memory = self._memories[sequence]
        if num_accepted == num_drafted:
            memory.depth = min(2 * memory.depth, self._settings.max_draft_tokens)
        else:
            memory.depth = num_accepted + 1
        memory.num_failures = 0 if num_accepted else memory.num_failures + 1
        memory.num_rest = min(2**memory.num_failures - 1, MAX_REST_STEPS)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence."""
        self._memories.pop(sequence, None)

    def _read(self, sequence: Sequence, memory: _Memory) -> int | None:
        """Take note of new tokens; return where what followed the newest ones begins.

        The newest tokens themselves are noted when there are newer ones.
        """
        width, num_tokens = self._settings.match_tokens, len(sequence)
        first = max(memory.num_read, width)
        stop = min(num_tokens, first + NUM_READ_TOKENS)
        tokens = tuple(sequence.tokens(first - width, stop))
        for end in range(first, stop):
            memory.follows[tokens[end - first : end - first + width]] = end
        memory.num_read = max(memory.num_read, stop)
        if stop < num_tokens:
            return None
        return memory.follows.get(tuple(sequence.tokens(max(0, stop - width), stop)))
