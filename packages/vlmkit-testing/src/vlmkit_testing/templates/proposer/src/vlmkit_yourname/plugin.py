"""Guesses that an answer goes on as the same tokens did the last time.

Where guesses stand, more are made at a time; where they do not, fewer, and in the end only one.
"""

from collections.abc import Sequence as Seq
from typing import Annotated

import msgspec

import vlmkit
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.sequence import Sequence
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
MAX_NEW_TOKENS = 4096
"""Tokens that are read between two steps: every answer waits for that."""


class EchoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[proposer]`` beside ``use = "yourname"``.

    Attributes:
        match_tokens: newest tokens that must have stood together before.
        max_draft_tokens: most guesses at a time; the engine may take fewer.
    """

    match_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8


class _Memory:
    """What is known of one sequence: where each few tokens ended last, and how guesses fare."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.num_read = 0
        self.num_guesses = 1


class EchoProposer:
    """Looks the newest tokens up among all earlier ones of the same request.

    Args:
        settings: how many tokens must agree, and how many are guessed.
    """

    def __init__(self, settings: EchoSettings | None = None) -> None:
        self._settings = settings or EchoSettings()
        self._memories: dict[Sequence, _Memory] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return what followed the newest tokens the last time; nothing if they are new."""
        memory = self._memories.setdefault(sequence, _Memory())
        end = self._read(sequence, memory)
        if end is None:
            return ()
        return sequence.tokens(end, min(len(sequence), end + min(num_tokens, memory.num_guesses)))

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        """Return what ``propose`` does for each answer of a step; called in its place.

        Leave this method out, or compute the drafts of all answers together here, by a model.
        """
        pairs = zip(sequences, num_tokens, strict=True)
        return [self.propose(sequence, bound) for sequence, bound in pairs]

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Guess twice as far after guesses that all stood, half as far after others."""
        memory = self._memories.setdefault(sequence, _Memory())
        doubled = min(2 * memory.num_guesses, self._settings.max_draft_tokens)
        memory.num_guesses = (
            doubled if num_accepted == num_drafted else memory.num_guesses // 2 or 1
        )

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence."""
        self._memories.pop(sequence, None)

    def _read(self, sequence: Sequence, memory: _Memory) -> int | None:
        """Take note of new tokens; return where the newest ones ended before, if they did."""
        width, num_tokens = self._settings.match_tokens, len(sequence)
        first = max(memory.num_read, width)
        stop = min(num_tokens, first + MAX_NEW_TOKENS)
        tokens = tuple(sequence.tokens(first - width, stop))
        for end in range(first, stop):  # the newest tokens are noted once something follows them
            memory.ends[tokens[end - first : end - first + width]] = end
        memory.num_read = max(memory.num_read, stop)
        if stop < num_tokens or num_tokens < width:
            return None
        return memory.ends.get(tuple(sequence.tokens(num_tokens - width, num_tokens)))


def _build(context: BuildContext) -> Proposer:
    return EchoProposer(context.settings)


@vlmkit.hookimpl
def vlmkit_register_proposers(registry: Registry[Proposer]) -> None:
    """Offer ``proposer.use = "yourname"``."""
    registry.add(
        "yourname", _build, settings=EchoSettings, description="what followed the same tokens last"
    )
