"""Samples in host memory, row by row, with the results of :mod:`.on_device` and without sorting.

A row is drawn by the Gumbel-max trick, so top-p needs no cut-off. It is enough to know whether the
winner, the token with the largest noisy logit, is in the nucleus. It is if all likelier tokens
weigh less than top-p of the total, which takes one masked sum. Otherwise the winner and every less
likely token are out, and the next winner is tested.

For a top-p of 0.9 that takes 1.1 sums on average. Whatever the logits, the average is at most the
harmonic number of the vocabulary size (12.5 for 152,000 tokens). Typical-p works alike, with tokens
nearer to the mean logit in place of likelier ones. Where one of the two comes before another filter
by probability, :mod:`.probability_cutoffs` computes its cut-off.

Near-ties are not left to float32. Where rounding could change the nucleus, the row is sorted; where
it could change the typical set, the cut-off is computed in float64.
"""

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from vlmkit.running.sampling.batch import Choice, apply, changed, columns
from vlmkit.running.sampling.logit_changes import Numbers
from vlmkit.running.sampling.probability_cutoffs import ProbabilityCutoff
from vlmkit.running.sampling.random_numbers import add_gumbel_noise, bits, exponentials
from vlmkit.running.sampling.top_k_top_p import cutoff_logit, top_p_target

ROWS_AT_ONCE = 4  # copied to be changed; the heap keeps the memory for the next rows
SLACK = 1.0001  # float32 weights of tokens that can win, and their sums, err by less
SUMMED_AT_ONCE = 256  # weights whose order does not matter at that precision
LEAST_SCALED = np.float32(-110.0)  # its weight is 0
GROUPS_FOR_EACH_RANK, LEAST_GROUP_TOKENS = 16, 8  # when a rank is searched for
MAX_TESTS = 32  # of winners, before the row is sorted after all


class _Tokens(NamedTuple):
    """Some tokens of a row: arrays ``[tokens]``, ordered by token id.

    Attributes:
        token_ids: uint32.
        logits: float32.
        weights: float32: probabilities at the temperature, relative to the likeliest token's.
    """

    token_ids: Numbers
    logits: Numbers
    weights: Numbers


def sample_on_host(logits: Numbers, choices: Seq[Choice]) -> Numbers:
    """Return token ids ``[rows]``.

    Args:
        logits: ``[rows, vocab]`` float32, not changed.
        choices: one for each row.
    """
    token_ids = np.zeros(len(choices), np.int64)
    plain = [row for row, c in enumerate(choices) if c.is_plain]
    rest = [row for row, c in enumerate(choices) if not c.is_plain]
    if plain:
        token_ids[plain] = np.argmax(logits[plain] if rest else logits, axis=-1)
        found = zip(plain, token_ids[plain].tolist(), strict=True)
        rest += [row for row, token_id in found if token_id in choices[row].banned]
    vocabulary = np.arange(logits.shape[-1] if rest else 0, dtype=np.uint32)
    for first in range(0, len(rest), ROWS_AT_ONCE):
        block = rest[first : first + ROWS_AT_ONCE]
        with np.errstate(all="ignore"):  # weights underflow, and infinities are differences
            own = [choices[row] for row in block]
            token_ids[block] = _choose(logits[block], vocabulary, own)
    return token_ids


def _choose(logits: Numbers, vocabulary: Numbers, choices: Seq[Choice]) -> Numbers:
    """Return the token of each row; changes the logits."""
    apply(np, logits, changed(choices, logits.shape[-1]), choices)
    token_ids: Numbers = np.argmax(logits, axis=-1)
    for row, choice in enumerate(choices):
        likeliest = token_ids[row]
        if not choice.is_drawn or not math.isfinite(logits[row, likeliest]):
            continue
        if choice.is_truncated:
            token_ids[row] = _draw_truncated(logits[row], vocabulary, choice, likeliest)
        else:
            token_ids[row] = _draw(logits[row], vocabulary, choice, likeliest)
    return token_ids


def _draw_truncated(logits: Numbers, vocabulary: Numbers, choice: Choice, likeliest: int) -> int:
    """Sample a token of a row ``[vocab]`` with filters by probability."""
    found = -1
    if choice.is_typical_alone:
        found = _draw_typical(logits, vocabulary, choice, likeliest)
    if found < 0:
        cut = ProbabilityCutoff(logits, choice.temperature)
        cut.apply(choice)
        left = cut.left()
        found = _draw(left, vocabulary, choice.without_filters(), int(left.argmax()))
    return found


def _draw_typical(logits: Numbers, vocabulary: Numbers, choice: Choice, likeliest: int) -> int:
    """Sample a token with typical-p; return -1 if rounding could change the result."""
    top = logits[likeliest]
    floor = _rounded_up(float(top) + choice.depth)
    if 0 < choice.top_k < len(logits):
        floor = max(floor, _ranked(logits, choice.top_k))
    scaled = logits - top
    scaled /= np.float32(choice.temperature)
    np.maximum(scaled, LEAST_SCALED, out=scaled)
    weights = np.exp(scaled)
    weights *= logits >= floor
    total = float(weights.sum())
    mean = _sum(weights, scaled) / total
    gaps = np.abs(scaled - np.float32(mean))
    noise = _Noise(_Tokens(vocabulary, logits, weights), choice)
    limit, slack = choice.typical_p * total, -2 * (SLACK - 1) * mean
    for _ in range(MAX_TESTS):
        found = noise.winner()
        gap = float(gaps[found])
        spread = slack + 1e-6 * (gap - mean)
        is_other = logits != logits[found]
        if _sum(weights, is_other & (gaps <= gap + spread)) * SLACK < limit:
            return found
        if _sum(weights, gaps < gap - spread) < limit * SLACK:
            return -1
        noise.keep(gaps < gap)
    return -1


def _draw(logits: Numbers, vocabulary: Numbers, choice: Choice, likeliest: int) -> int:
    """Sample a token id of a row ``[vocab]`` whose largest logit is finite."""
    top, floor = logits[likeliest], np.float32(-math.inf)
    num_ranked = min(choice.top_k or len(logits), len(logits))
    if num_ranked < len(logits):
        floor = _ranked(logits, num_ranked)
        vocabulary, logits = _only(logits >= floor, vocabulary, logits)
    weights = logits - top
    weights /= np.float32(choice.temperature)
    np.exp(weights, out=weights)
    ranked = _Tokens(vocabulary, logits, weights)
    limit, is_kept = math.inf, logits >= max(floor, _rounded_up(float(top) + choice.depth))
    if choice.top_p < 1.0:
        total = _mass(ranked, floor, num_ranked)
        limit = choice.top_p * total
        is_kept &= weights >= _least_weight(choice.top_p, total, len(logits))
    kept = _Tokens(*_only(is_kept, *ranked))
    noise = _Noise(kept, choice)
    if len(kept.logits) == len(logits) and not is_kept.all():
        noise.keep(is_kept)
    found = noise.winner()
    if choice.top_p < 1.0:
        found = _in_nucleus(found, kept, noise, limit)
    if found < 0:
        noise.keep(kept.logits >= _nucleus_floor(logits, top, choice, num_ranked))
        found = noise.winner()
    return int(kept.token_ids[found])


def _ranked(logits: Numbers, rank: int) -> np.float32:
    """Return the logit of a rank, counted from 1; no logit may be NaN.

    Each of some groups of tokens has its largest logit. That of the rank among these is a lower
    bound, and few logits reach it. Neighbours are in different groups, since likely tokens may be.
    """
    num_groups = GROUPS_FOR_EACH_RANK * rank
    if (size := len(logits) // num_groups) >= LEAST_GROUP_TOKENS:
        whole = logits[: size * num_groups].reshape(size, num_groups)
        bound = np.partition(whole.max(axis=0), -rank)[-rank]
        logits = logits[logits >= bound]
    found: np.float32 = np.partition(logits, -rank)[-rank]
    return found


def _in_nucleus(found: int, kept: _Tokens, noise: "_Noise", limit: float) -> int:
    """Return the index of the winner in the nucleus; -1 if rounding could change it.

    Args:
        found: index of the largest noisy logit.
        kept: all tokens that may be in the nucleus.
        noise: the noise of those tokens; drops tokens outside of the nucleus.
        limit: a token is in the nucleus while all likelier ones weigh less than this.
    """
    for _ in range(MAX_TESTS):
        is_likelier = kept.logits > kept.logits[found]
        mass = _sum(kept.weights, is_likelier)
        if mass * SLACK < limit:
            return found
        if mass < limit * SLACK:
            break
        noise.keep(is_likelier)
        found = noise.winner()
    return -1


def _only(is_kept: Numbers, *columns: Numbers) -> Seq[Numbers]:
    """Return columns without dropped tokens, if most are dropped; otherwise a mask is cheaper."""
    if np.count_nonzero(is_kept) > len(is_kept) // 8:
        return columns
    indices = np.flatnonzero(is_kept)
    return [column[indices] for column in columns]


def _least_weight(top_p: float, total: float, num: int) -> float:
    """Return a weight below which none of ``num`` tokens can be in the nucleus.

    All lighter tokens together weigh less than top-p leaves out.
    """
    left_out = 1.0 - top_p
    return left_out * total / (1.01 * num) if left_out > 1e-7 else 0.0  # rounding counts below


class _Noise:
    """The Gumbel noise of some tokens of a row, computed only for tokens that can win.

    Args:
        tokens: some tokens, the likeliest of the row among them.
        choice: the keys and the temperature.
    """

    def __init__(self, tokens: _Tokens, choice: Choice) -> None:
        first, second = choice.keys
        self._bits = bits(tokens.token_ids, np.uint32(first), np.uint32(second))
        self._tokens = tokens
        self._temperature = np.array([choice.temperature])
        # The smaller a token's exponential number over its weight, the larger its noisy logit. The
        # exponential number is at least one minus its uniform number, and close to it where small.
        self._least = np.invert(self._bits).astype(np.float32)
        self._least += np.float32(0.5)
        self._least /= tokens.weights

    def keep(self, is_kept: Numbers) -> None:
        """Keep only the tokens of a mask; a division is faster than a selection."""
        self._least /= is_kept

    def winner(self) -> int:
        """Return the index of the largest noisy logit, the first of equals."""
        guess = int(self._least.argmin())
        bound = exponentials(np, self._bits[guess : guess + 1]) * (2.0**32 * SLACK)
        bound /= self._tokens.weights[guess]
        some = np.flatnonzero(self._least <= bound.astype(np.float32))
        drawn = exponentials(np, self._bits[some])
        return int(
            some[add_gumbel_noise(np, self._tokens.logits[some], self._temperature, drawn).argmax()]
        )


def _mass(ranked: _Tokens, last: np.float32, num: int) -> float:
    """Return the summed weights of the ``num`` likeliest tokens; the last may be tied."""
    if num >= len(ranked.logits):
        return float(ranked.weights.sum())
    is_likelier = ranked.logits > last
    num_tied = num - int(np.count_nonzero(is_likelier))
    tied = ranked.weights[ranked.logits == last][:1]
    return _sum(ranked.weights, is_likelier) + num_tied * float(tied[0])


def _sum(weights: Numbers, factors: Numbers) -> float:
    """Return the sum of weights times factors; a factor may be a boolean.

    It is faster than a selection, which branches at each weight.
    """
    wanted = factors.astype(np.float32, copy=False)
    whole = len(weights) // SUMMED_AT_ONCE * SUMMED_AT_ONCE
    pairs = [array[:whole].reshape(-1, SUMMED_AT_ONCE) for array in (weights, wanted)]
    rest = np.einsum("i,i->", weights[whole:], wanted[whole:])
    return float(np.einsum("ij,ij->i", *pairs).sum()) + float(rest)


def _nucleus_floor(logits: Numbers, top: np.float32, choice: Choice, num: int) -> np.float32:
    """Return the least logit that top-p keeps, by sorting all logits with any float64 weight."""
    # exp(-746) is 0 in float64: such a logit changes no sum.
    heavy = logits[logits.astype(np.float64) - top >= -746.0 * choice.temperature]
    ordered = np.sort(heavy)[::-1][None, :num]
    own = columns([choice._replace(top_k=0)], [0], ordered.shape[-1])
    floor: np.float32 = cutoff_logit(np, ordered, own, top_p_target(own))[0, 0]
    return floor


def _rounded_up(value: float) -> np.float32:
    """Return the least float32 that is not below a value."""
    near = np.float32(value)
    return near if float(near) >= value else np.nextafter(near, np.float32(math.inf))
