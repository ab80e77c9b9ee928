"""The logits of an answer that a constraint has forced off its script: they prefer a short value.

The engine sees which tokens were chosen, never which were allowed. So it prefers tokens that soon
end the answer or a JSON value. If those are not allowed, it tries tokens that the end may require:
a separator after a few letters, the least used one first. Finally, noise decides.
"""

from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from vlmkit_mock import vocabulary as v
from vlmkit_mock.kinds import (
    BACKSLASH,
    CLOSERS,
    COMMON,
    KINDS,
    LOWER,
    OTHER,
    QUOTE,
    SEPARATOR,
    SEPARATORS,
    WORD_KINDS,
)
from vlmkit_mock.progress import Progress

Row = NDArray[np.float32]

ON_SCRIPT_SCALE = 0.3  # of these logits except the end's, while the answer follows the script
MOST_ON_SCRIPT = 20.0  # before scaling, so that the script stays nearly certain
ZERO_ON_SCRIPT = 12.0  # above letters, for a number instead of the script
END, CLOSER, CLOSER_IN_STRING = 40.0, 30.0, 25.0
COMMON_AFTER_RUN, ESCAPE_AFTER_RUN = 19.0, 17.5
SEPARATOR_AFTER_RUN, WORD_AFTER_RUN = 16.0, 11.0
LONG_RUN = 4  # characters of one kind, after which other kinds are preferred
MAX_USES, COST_OF_USE = 3, 1.5  # of a separator; with more uses all cost the same
GAIN_OF_FIRST_USE = 1.0  # a token used once may close what it opened, as quotes do
NUM_ORDERLY, NUM_TO_SPREAD, SPREAD = 96, 8, 12.0
"""After NUM_ORDERLY tokens, noise grows by 1 for each NUM_TO_SPREAD tokens, up to SPREAD."""

_TEXT = {
    v.END: END,
    v.REASONING: -4.0,
    v.REASONING_END: CLOSER,
    **dict.fromkeys(range(0x20), -6.0),
    **dict.fromkeys(range(0x7F, v.NUM_BYTES), -4.0),
    **dict.fromkeys(SEPARATORS, 2.0),
    **dict.fromkeys(COMMON, 3.0),
    BACKSLASH: -6.0,
}
_OUTSIDE = _TEXT | {
    **dict.fromkeys([v.CALL, v.CALL_END], 4.0),
    **dict.fromkeys(ascii_lowercase.encode(), 6.0),
    **dict.fromkeys(ascii_uppercase.encode(), 5.0),
    **dict.fromkeys(b"123456789", 4.0),
    ord("0"): 5.0,
    ord("["): 3.5,
    QUOTE: 2.0,
}
_IN_STRING = _TEXT | {
    **dict.fromkeys(ascii_lowercase.encode(), 8.0),
    **dict.fromkeys([*ascii_uppercase.encode(), *digits.encode()], 4.0),
    QUOTE: CLOSER,
}
_VALUES = {
    ord(","): 15.0,
    QUOTE: 9.0,
    ord("0"): 8.0,
    ord("n"): 8.0,  # of null
    **dict.fromkeys(b"tf", 7.0),
}
_LETTERS, _CAPITALS = ([*chars.encode()] for chars in (ascii_lowercase, ascii_uppercase))
_SEPARATORS = sorted(SEPARATORS)
_ESCAPED = dict.fromkeys(b'n"', 14.0)


class Preferences:
    """Computes logits from an answer's progress."""

    def __init__(self) -> None:
        self._after = {
            (is_in_string, kind): _after(is_in_string, kind)
            for is_in_string in (False, True)
            for kind in (None, *WORD_KINDS)
        }
        self._on_script = {
            (is_in_string, closer): _on_script(
                self._after[is_in_string, None], is_in_string, closer
            )
            for is_in_string in (False, True)
            for closer in (None, *CLOSERS.values())
        }
        self._spread = np.array([kind != OTHER for kind in KINDS], np.float32)

    def logits(self, progress: Progress, noise: Row) -> Row:
        """Return the logits of the next token; ``noise`` is between 0 and 1."""
        is_in_string, closer = progress.is_in_string, progress.closer
        if progress.is_on_script:
            return noise + self._on_script[is_in_string, closer]
        is_long = progress.run >= LONG_RUN and progress.kind in WORD_KINDS
        row = self._after[is_in_string, progress.kind if is_long else None].copy()
        num_late = max(0, progress.num_own - NUM_ORDERLY)
        if progress.is_json and is_in_string and not (num_late and progress.uses):
            _prefer_leaves(row, len(progress.closers))
            num_late = 0
        if closer is not None and (closer != ord(">") or progress.kind in WORD_KINDS):
            row[closer] = CLOSER_IN_STRING if is_in_string else CLOSER
        is_between_strings = progress.is_json and not is_in_string
        if is_between_strings:
            _prefer_values(row, progress)
        if progress.last == ord("0"):
            row[progress.last] = 2.0  # a positive number needs other digits
        if is_between_strings:
            return row + noise
        _prefer_unused(row, progress)
        _prefer_pairs(row, progress)
        if num_late and not progress.is_escaped:
            noise = noise + noise * self._spread * min(SPREAD, num_late / NUM_TO_SPREAD)
        return row + noise


def _on_script(row: Row, is_in_string: bool, closer: int | None) -> Row:
    """Return the logits for tokens where the script must not continue."""
    row = row.copy()
    row[ord("0")] = ZERO_ON_SCRIPT
    if closer is not None and not is_in_string:
        row[closer] = CLOSER
        if closer in b"]}":
            row[list(_VALUES)] = list(_VALUES.values())
    np.minimum(row, MOST_ON_SCRIPT, out=row)
    row *= ON_SCRIPT_SCALE
    row[[v.END, v.REASONING_END]] = 0.0
    return row


def _prefer_leaves(row: Row, depth: int) -> None:
    """Prefer the first or the last letters in a JSON string, depending on the depth.

    Nested objects must differ from their parents by a name or a value. At some depth, the
    preferred letter is the one that ends the nesting. The order has no period (the Thue-Morse
    sequence), so it works for any distance between objects.
    """
    is_reversed = depth.bit_count() % 2 == 0
    row[_LETTERS[::-1] if is_reversed else _LETTERS] -= np.arange(len(_LETTERS))


def _prefer_values(row: Row, progress: Progress) -> None:
    """Prefer tokens that start a short JSON value, and that end a number."""
    row[list(_VALUES)] = list(_VALUES.values())
    if progress.kind == LOWER:
        row[list(b"ntf")] = row[ord("a")]


def _prefer_unused(row: Row, progress: Progress) -> None:
    """Prefer unused separators, and those that may close what they opened."""
    if v.REASONING_END in progress.uses:
        row[v.REASONING_END] = -4.0
    for token_id in progress.uses.keys() - {v.REASONING_END}:
        num_uses = min(progress.uses[token_id], MAX_USES)
        is_begun = num_uses == 1 and token_id not in COMMON
        row[token_id] -= -GAIN_OF_FIRST_USE if is_begun else COST_OF_USE * num_uses


def _prefer_pairs(row: Row, progress: Progress) -> None:
    """Prefer common second tokens: the rest of an escape, of ``</``, of ``--``.

    After a separator, also prefer letters, sometimes capitals, sometimes another separator.
    """
    last, most = progress.last, row[_LETTERS].max()
    if progress.is_escaped:
        row[list(_ESCAPED)] = list(_ESCAPED.values())
    elif last == ord("<"):
        row[ord("/")] = SEPARATOR_AFTER_RUN
    elif progress.kind == SEPARATOR and progress.run == 1:
        row[last] = max(row[last], most)
        if progress.uses.get(last, 0) % 3 == 2:
            row[_CAPITALS] = np.maximum(row[_CAPITALS], most + 2.0)
        elif progress.uses.get(last, 0) % 3 == 0:
            row[_SEPARATORS] = np.maximum(row[_SEPARATORS], most + 3.0)


def _after(is_in_string: bool, kind: int | None) -> Row:
    """Return the preferences after a long run of some kind, or after anything else."""
    row = np.zeros(v.VOCAB_SIZE, np.float32)
    preferred = _IN_STRING if is_in_string else _OUTSIDE
    row[list(preferred)] = list(preferred.values())
    if kind is None:
        return row
    for token_id, other in enumerate(KINDS):
        if other == SEPARATOR:
            row[token_id] = COMMON_AFTER_RUN if token_id in COMMON else SEPARATOR_AFTER_RUN
        elif other in WORD_KINDS and other != kind:
            row[token_id] = WORD_AFTER_RUN
    if is_in_string:
        row[BACKSLASH] = ESCAPE_AFTER_RUN
    return row
