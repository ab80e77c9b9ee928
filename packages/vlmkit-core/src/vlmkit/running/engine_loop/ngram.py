"""N-gram drafts: the tokens that followed the same few tokens before, in the prompt or the answer.

This is prompt lookup decoding (Saxena, 2023): answers repeat the prompt, names and numbers above
all. It costs a dictionary entry for each token and needs no model. The number of drafts follows the
acceptance of the last ones, so that an answer without repetitions costs little.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from vlmkit.interfaces.sequence import Sequence
from vlmkit.settings.ngram import NgramSettings

NUM_READ_TOKENS = 2048  # of a long prompt, between two steps
MAX_REST_STEPS = 32


@dataclass(slots=True)
class _Memory:
    """The state of one sequence.

    Attributes:
        follows: for each n-gram, the index of the token after its newest occurrence.
        num_read: tokens that ``follows`` covers.
        depth: tokens to draft next.
        num_failures: drafts in a row of which no token was accepted.
        num_rest: steps without drafts that are left.
    """

    depth: int
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_read: int = 0
    num_failures: int = 0
    num_rest: int = 0


class NgramProposer:
    """Looks up the newest tokens among all earlier ones.

    Args:
        settings: how many tokens must match, and how many are drafted.
    """

    def __init__(self, settings: NgramSettings | None = None) -> None:
        self._settings = settings or NgramSettings()
        self._memories: dict[Sequence, _Memory] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return the tokens after the last occurrence of the newest ones; none if they are new."""
        memory = self._memories.setdefault(sequence, _Memory(self._settings.first_depth_tokens))
        start = self._read(sequence, memory)
        if memory.num_rest:
            memory.num_rest -= 1
            return ()
        if start is None:
            return ()
        followed = sequence.tokens(start, len(sequence))  # repeated if it is too short
        return [followed[i % len(followed)] for i in range(min(num_tokens, memory.depth))]

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Draft more tokens after accepted drafts, and fewer or later ones after rejected ones."""
        memory = self._memories[sequence]
        if num_accepted == num_drafted:
            memory.depth = min(2 * memory.depth, self._settings.max_draft_tokens)
        else:
            memory.depth = num_accepted + 1
        memory.num_failures = 0 if num_accepted else memory.num_failures + 1
        memory.num_rest = min(2**memory.num_failures - 1, MAX_REST_STEPS)

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence."""
        self._memories.pop(sequence, None)

    def _read(self, sequence: Sequence, memory: _Memory) -> int | None:
        """Index new tokens; return the index after the newest n-gram's last occurrence.

        The newest n-gram itself is indexed when a token follows it.
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
