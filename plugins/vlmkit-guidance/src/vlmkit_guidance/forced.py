"""Finds the text that must follow in an answer, with a bounded look-ahead.

llguidance can do that itself, but without a bound: a pattern of ten bytes can force a million, and
no other thread runs meanwhile. This walk looks a fixed distance ahead, with masks whose cost is
bounded. It applies no mask.
"""

import time
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from vlmkit.errors import ConstraintError
from vlmkit_guidance.tokens import Tokens

BLOCK_BYTES = 64
MAX_PIECES = 512  # with more allowed tokens, nothing is forced
MAX_WALK_S = 0.05  # of this thread's CPU time; a few ms are usual


class Run(NamedTuple):
    """Text that must follow in an answer.

    Attributes:
        text: the bytes; empty if there is a choice.
        reaches: for an offset in the text, the largest end of a token that may start there.
        only: the only allowed token, if it adds no text; usually None.
        end: the offset in the answer where the walk reached its bound; None if it did not.
    """

    text: bytes
    reaches: dict[int, int]
    only: int | None = None
    end: int | None = None

    def after(self, piece: bytes, num_bytes: int) -> "Run | None":
        """Return the rest after a token, or None if it must be searched again.

        Args:
            piece: the bytes of the token.
            num_bytes: the length of the answer after it.
        """
        if not piece or not self.text.startswith(piece) or len(piece) == len(self.text):
            return None
        if self.end is not None and self.end != _end(num_bytes):
            return None
        num = len(piece)
        reaches = {at - num: reach - num for at, reach in self.reaches.items() if at >= num}
        return Run(self.text[num:], reaches, end=self.end)


def find_run(
    matcher: LLMatcher, allowed: NDArray[np.uint32], tokens: Tokens, num_bytes: int
) -> Run:
    """Return the text that must follow; the matcher's state is unchanged afterwards.

    Args:
        matcher: a matcher at the end of the answer.
        allowed: its mask there, ``[words]``.
        tokens: of the model.
        num_bytes: the length of the answer; the result depends on it and the matcher alone.

    Raises:
        ConstraintError: the search takes too long.
    """
    began_s = time.thread_time()
    text, reaches, num_consumed = b"", dict[int, int](), 0
    is_bounded = False
    while not matcher.is_accepting():
        token_ids = _few(allowed, tokens.eos_token_id)
        pieces = {tokens.tokens[token_id]: int(token_id) for token_id in token_ids}
        if b"" in pieces:
            if len(token_ids) == 1 and not text:
                return Run(b"", {}, only=int(token_ids[0]))
            break
        known = _common(pieces)
        if not known:
            break
        reaches[len(text)] = len(text) + max(map(len, pieces))
        shortest = min(pieces, key=len)
        if len(shortest) > len(known):
            text += known
            break
        if num_bytes + len(text) + len(shortest) > _end(num_bytes):
            is_bounded = True
            break
        if time.thread_time() - began_s > MAX_WALK_S:
            raise ConstraintError(
                "the constraint is too complex for this answer: it takes too long"
            )
        if matcher.try_consume_tokens([pieces[shortest]]) != 1:
            break
        num_consumed += 1
        text += shortest
        allowed = np.frombuffer(matcher.compute_bitmask(), "<u4")
    if num_consumed and not matcher.is_error():
        matcher.rollback(num_consumed)
    return Run(text, reaches, end=_end(num_bytes) if is_bounded else None)


def forced_tokens(run: Run, tokens: Tokens, last: int | None) -> list[int]:
    """Return the model's own tokens of a run, except those that later text may change.

    Args:
        run: the text that must follow.
        tokens: of the model.
        last: the newest token of the answer; tokenizers may encode the start of a text otherwise.
    """
    if run.only is not None:
        return [run.only]
    if not run.text:
        return []
    usual = tokens(run.text)
    if last is not None and (before := tokens.tokens[last]):
        together = tokens(before + run.text)
        if together[:1] == [last]:
            usual = together[1:]
    stable, offset = list[int](), 0
    for token_id in usual:
        if run.reaches.get(offset, len(run.text) + 1) > len(run.text):
            break
        stable.append(token_id)
        offset += len(tokens.tokens[token_id])
    return stable


def _end(num_bytes: int) -> int:
    """Return the offset up to which an answer is looked ahead: one to two blocks."""
    return (num_bytes // BLOCK_BYTES + 2) * BLOCK_BYTES


def _few(allowed: NDArray[np.uint32], end: int) -> NDArray[np.intp]:
    """Return the tokens of a mask below ``end``; none if there are many."""
    places = np.flatnonzero(allowed)
    if len(places) > MAX_PIECES:
        return places[:0]
    words = allowed[places].astype("<u4")
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    rows, columns = np.nonzero(bits)
    token_ids = places[rows] * 32 + columns
    token_ids = token_ids[token_ids < end]
    return token_ids if len(token_ids) <= MAX_PIECES else token_ids[:0]


def _common(pieces: dict[bytes, int]) -> bytes:
    """Return the longest text of which every piece is a prefix or an extension."""
    if not pieces:
        return b""
    ordered = sorted(pieces)
    whole = [
        piece
        for piece, after in zip(ordered, [*ordered[1:], b""], strict=True)
        if not after.startswith(piece)
    ]
    first, last = whole[0] if whole else b"", whole[-1] if whole else b""
    size = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return first[:size] if size is not None else min(first, last, key=len)
