"""Choosing in host memory, where looking costs nothing: what has no chance is not computed.

Gives what :mod:`on_device` gives. Rows that take the likeliest token are copied only if that is
banned. Top-k and top-p order the thousand largest logits, and ever more if these do not suffice.
Rows without them compute the noise of those tokens alone whose random bits let them beat the
likeliest. A few rows go at once, so that what is computed on the way stays small.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.running.choosing.batch import Choice, Columns, apply, changed, columns
from vlmkit.running.choosing.edits import Numbers
from vlmkit.running.choosing.filters import Sums, least_kept, share
from vlmkit.running.choosing.noise import WORD, bits, exponentials, noisy

NUM_CANDIDATES = 1024
ROWS_AT_ONCE = 4  # of which a core's cache holds most, and the heap keeps all for the next step
SLACK = 1.0001  # weights and limits err by less, where a token has a chance


def pick_on_host(logits: Numbers, choices: Seq[Choice]) -> Numbers:
    """Return token ids ``[rows]``.

    Args:
        logits: ``[rows, vocab]`` float32, left as they are.
        choices: of each row.
    """
    token_ids = np.zeros(len(choices), np.int64)
    plain = [place for place, c in enumerate(choices) if c.is_plain]
    rest = [place for place, c in enumerate(choices) if not c.is_plain]
    if plain:
        token_ids[plain] = np.argmax(logits[plain] if rest else logits, axis=-1)
        found = zip(plain, token_ids[plain].tolist(), strict=True)
        rest += [place for place, token_id in found if token_id in choices[place].banned]
    for first in range(0, len(rest), ROWS_AT_ONCE):
        block = rest[first : first + ROWS_AT_ONCE]
        with np.errstate(all="ignore"):  # infinities and NaN have their say in the end
            token_ids[block] = _choose(logits[block], [choices[place] for place in block])
    return token_ids


def _choose(logits: Numbers, choices: Seq[Choice]) -> Numbers:
    """Return the tokens of rows that may be written to."""
    vocab_size = logits.shape[-1]
    apply(np, logits, changed(choices, vocab_size), scales=any(c.is_scaled for c in choices))
    token_ids: Numbers = np.argmax(logits, axis=-1)
    if cut := [place for place, c in enumerate(choices) if c.is_cut]:
        own = columns(choices, cut, vocab_size)
        token_ids[cut] = _draw_cut(_of(logits, cut), own, token_ids[cut], NUM_CANDIDATES)
    if whole := [place for place, c in enumerate(choices) if c.is_drawn and not c.is_cut]:
        own = columns(choices, whole, vocab_size)
        token_ids[whole] = _draw(_of(logits, whole), own, token_ids[whole])
    return token_ids


def _of(logits: Numbers, places: Seq[int] | Numbers) -> Numbers:
    """Return some rows, which are not copied if they are all."""
    return logits if len(places) == len(logits) else logits[places]


def _draw_cut(logits: Numbers, own: Columns, likeliest: Numbers, num: int) -> Numbers:
    """Draw from what top-k and top-p leave, found among so many values, or more if need be.

    Args:
        logits: ``[rows, vocab]``.
        own: the rows' columns.
        likeliest: ``[rows]`` token ids, which are drawn if no other can be.
        num: how many of the largest values to look at.
    """
    num_others = max(0, logits.shape[-1] - num)
    some = np.partition(logits, num_others, axis=-1)[:, num_others:] if num_others else logits
    floors, is_enough = _floors(logits, np.sort(some, axis=-1)[:, ::-1], own)
    near = np.nextafter(floors.astype(np.float32), np.float32(-math.inf))
    chosen = _noisiest(logits, np.flatnonzero(logits >= near), floors, own, likeliest)
    if few := np.flatnonzero(~is_enough).tolist():
        rest = Columns(*(column[few] for column in own))._replace(order=own.order[: len(few)])
        chosen[few] = _draw_cut(_of(logits, few), rest, likeliest[few], 16 * num)
    return chosen


def _floors(logits: Numbers, likeliest: Numbers, own: Columns) -> tuple[Numbers, Numbers]:
    """Return ``[rows, 1]`` the least logits that the filters keep, and whether all these are here.

    Args:
        logits: ``[rows, vocab]``.
        likeliest: ``[rows, num]``, largest first.
        own: the rows' columns.
    """
    num, vocab_size = likeliest.shape[-1], logits.shape[-1]
    is_bounded, is_whole = own.last < num, num == vocab_size
    inside = own._replace(last=np.minimum(own.last, num - 1))
    wanted = share(inside)
    if not is_bounded.all():
        shares = own.top_p * _totals(logits, likeliest[:, :1], own)

        def wanted(reached: Any, within: Sums = wanted) -> Any:
            return np.minimum(np.where(is_bounded, within(reached), shares), reached[:, -1:])

    found = least_kept(np, likeliest, inside, wanted)
    floors = np.maximum(found, likeliest[:, :1] + own.depths)
    is_known = is_bounded | (own.last == vocab_size - 1)
    return floors, is_whole | (is_known & (floors > likeliest[:, -1:]))


def _totals(logits: Numbers, largest: Numbers, own: Columns) -> Numbers:
    """Return ``[rows, 1]`` the sums of all weights."""
    weights = logits - largest
    weights /= own.temperatures.astype(np.float32)
    np.exp(weights, out=weights)
    totals: Numbers = weights.sum(axis=-1, keepdims=True)
    return totals


def _draw(logits: Numbers, own: Columns, likeliest: Numbers) -> Numbers:
    """Draw from all tokens, or from those that min-p leaves.

    Args:
        logits: ``[rows, vocab]``.
        own: the rows' columns.
        likeliest: ``[rows]`` token ids, which are drawn if no other can be.
    """
    top = _at(logits, likeliest)
    token_ids = np.arange(logits.shape[-1], dtype=np.uint32)
    random_bits = bits(token_ids, own.first.astype(np.uint32), own.second.astype(np.uint32))
    # A token beats the likeliest if its own exponential number is less than that of the likeliest
    # times its weight. It is more than the share of words that are over the token's random bits.
    limits = exponentials(np, _at(random_bits, likeliest)) * (SLACK * WORD)
    chances = logits - top
    chances /= own.temperatures.astype(np.float32)
    np.exp(chances, out=chances)
    chances *= limits.astype(np.float32)
    flat = np.flatnonzero(np.invert(random_bits).astype(np.float32) <= chances)
    return _noisiest(logits, flat, top + own.depths, own, likeliest)


def _noisiest(
    logits: Numbers, flat: Numbers, floors: Numbers, own: Columns, likeliest: Numbers
) -> Numbers:
    """Return each row's token with the largest sum of logit over temperature and noise.

    Args:
        logits: ``[rows, vocab]``.
        flat: which of them have a chance, counted through all rows.
        floors: ``[rows, 1]`` float64: and are no less than this.
        own: the rows' columns.
        likeliest: ``[rows]`` token ids of rows in which none has.
    """
    vocab_size = logits.shape[-1]
    flat = flat[logits.reshape(-1)[flat] >= floors[flat // vocab_size, 0]]
    rows, token_ids = np.divmod(flat, vocab_size)
    drawn = exponentials(np, bits(token_ids, own.first[rows, 0], own.second[rows, 0]))
    sums = noisy(np, logits.reshape(-1)[flat], own.temperatures[rows, 0], drawn)
    best = np.full(len(logits), -math.inf)
    np.maximum.at(best, rows, sums)
    hits = np.flatnonzero(sums == best[rows])[::-1]  # the first of equals is written last
    chosen = likeliest.copy()
    chosen[rows[hits]] = token_ids[hits]
    return chosen


def _at(rows: Numbers, columns: Numbers) -> Numbers:
    """Return ``[rows, 1]`` one value of each row."""
    return np.take_along_axis(rows, columns[:, None], axis=-1)
