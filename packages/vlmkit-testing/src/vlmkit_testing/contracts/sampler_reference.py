"""The distribution of a sampler's draws, computed as the parameters are documented. No tests.

It is slow and direct, in float64. A choice whose set of tokens depends on rounding has no result.
"""

from collections import Counter
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.types.sampling import SamplingParams

Numbers = np.ndarray[Any, Any]
ROUNDING = 1e-3  # of the bounds of filters; more than float32 sums of 200,000 weights are off
MAX_XTC_THRESHOLD = 0.5
BOUNDS = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "xtc_threshold")


def probabilities(logits: Numbers, row: Row) -> Numbers | None:
    """Return the probability ``[vocab]`` of each token; None where rounding would change it."""
    params = row.sequence.params
    edited = edited_logits(logits, row)
    best = edited.max()
    if params.temperature < 1e-5 or params.top_k == 1:
        near = edited >= best - ROUNDING * max(1.0, abs(best))
        return near.astype(np.float64) if near.sum() == 1 else None
    scaled = (edited - best) / params.temperature
    kept = _filtered(scaled, params)
    values, places = np.unique(scaled, return_inverse=True)
    for number, factor in enumerate((1 - ROUNDING, 1 + ROUNDING)):
        noise = np.random.default_rng(number).uniform(-1e-5, 1e-5, len(values))
        moved = _moved(params, factor)
        if (_filtered(scaled + noise[places], moved, counts_equal=number == 1) != kept).any():
            return None
    weights: Numbers = np.exp(scaled) * kept
    weights /= weights.sum()
    return weights


def edited_logits(logits: Numbers, row: Row) -> Numbers:
    """Return logits after biases, penalties and bans, in the documented order."""
    sequence, params = row.sequence, row.sequence.params
    logits = logits.astype(np.float64)
    answer = [*sequence.output_ids, *row.ahead]
    tokens = [*sequence.prompt.token_ids, *answer]
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    for ids, bias in params.sequence_bias:
        if _ends(tokens, ids[:-1]):
            logits[ids[-1]] += bias
    newest = tokens if params.repeat_last_n < 0 else _last(tokens, params.repeat_last_n)
    for token_id in set(newest):
        factor = params.repetition_penalty
        logits[token_id] *= 1 / factor if logits[token_id] > 0 else factor
    for token_id, num in Counter(answer if params.repeat_last_n < 0 else newest).items():
        logits[token_id] -= params.presence_penalty + num * params.frequency_penalty
    for token_id, length in _runs(tokens, params, sequence.dry_breakers).items():
        excess = length - params.dry_allowed_length
        logits[token_id] -= params.dry_multiplier * params.dry_base**excess
    logits[list(_banned(row, tokens))] = -np.inf
    return logits


def _banned(row: Row, tokens: list[int]) -> set[int]:
    sequence, params = row.sequence, row.sequence.params
    banned = {*sequence.banned_ids, *params.suppress_tokens}
    banned |= sequence.eos_ids if row.num_output < params.min_tokens else set()
    banned |= set(params.begin_suppress_tokens) if row.num_output == 0 else set()
    ends = {(token_id,) for token_id in sequence.eos_ids}
    words = [ids for ids in params.bad_words_ids if ids not in ends]
    if size := params.no_repeat_ngram_size:
        words += [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return banned | {ids[-1] for ids in words if _ends(tokens, ids[:-1])}


def _runs(
    tokens: list[int], params: SamplingParams, breakers: Mapping[int, Seq[tuple[int, ...]]]
) -> Counter[int]:
    """Return the longest run that each token would continue, if DRY penalises it."""
    found: Counter[int] = Counter()
    if not params.dry_multiplier:
        return found
    last_n = params.dry_penalty_last_n
    window = tokens if last_n < 0 else _last(tokens, last_n)
    most = len(window)
    for number, token_id in enumerate(window):  # a run holds no breaker
        for tail in breakers.get(token_id, ()):
            if tuple(window[number + 1 : number + 1 + len(tail)]) == tail:
                most = len(window) - number - 1 - len(tail)
    for end in range(1, len(window)):
        length = 0
        while length < min(end, most) and window[end - 1 - length] == window[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length and () not in breakers.get(window[end], ()):
            found[window[end]] = max(found[window[end]], length)
    return found


def _filtered(scaled: Numbers, params: SamplingParams, *, counts_equal: bool = False) -> Numbers:
    """Return the tokens that all filters keep, each after the ones before it.

    Args:
        scaled: the logits, divided by the temperature.
        params: the filters.
        counts_equal: whether all tokens as likely as the last one of top-k count for top-p.
    """
    kept: Numbers = scaled > -np.inf
    if 0 < params.top_k < len(scaled):
        kept &= scaled >= np.sort(scaled)[-params.top_k]
    if params.top_p < 1.0:
        probs = _probs(scaled, kept)
        if 0 < params.top_k < kept.sum() and not counts_equal:
            probs *= probs.sum() / np.sort(probs)[-params.top_k :].sum()
        kept &= scaled >= scaled[_reached(-scaled, probs, params.top_p)]
    if params.min_p:
        kept &= scaled >= scaled.max() + np.log(params.min_p)
    if params.typical_p < 1.0:
        gaps = np.abs(scaled - (_probs(scaled, kept) * np.where(kept, scaled, 0.0)).sum())
        kept &= gaps <= gaps[_reached(gaps, _probs(scaled, kept), params.typical_p)]
    if params.epsilon_cutoff:
        probs = _probs(scaled, kept)
        kept &= probs >= min(params.epsilon_cutoff, probs.max())
    if params.eta_cutoff:
        probs = _probs(scaled, kept)
        some = probs[probs > 0]
        least = np.sqrt(params.eta_cutoff) * np.exp((some * np.log(some)).sum())
        kept &= probs >= min(params.eta_cutoff, least, probs.max())
    if params.xtc_probability and params.xtc_threshold <= MAX_XTC_THRESHOLD:
        likely = _probs(scaled, kept) >= params.xtc_threshold
        if likely.any():
            kept &= scaled <= scaled[likely].min()
    return kept


def _reached(distances: Numbers, probs: Numbers, mass: float) -> int:
    """Return the token with which the probabilities of the nearest tokens reach a sum."""
    order = np.argsort(distances)
    rank = int((np.cumsum(probs[order]) < mass).sum())
    return int(order[min(rank, len(order) - 1)])


def _probs(scaled: Numbers, kept: Numbers) -> Numbers:
    weights: Numbers = np.where(kept, np.exp(scaled), 0.0)
    weights /= weights.sum()
    return weights


def _moved(params: SamplingParams, factor: float) -> SamplingParams:
    """Return parameters with every bound that is set multiplied by a factor."""
    moved = {name: min(1.0, getattr(params, name) * factor) for name in BOUNDS}
    unset = {name for name in ("top_p", "typical_p") if getattr(params, name) == 1.0}
    return params.replaced({name: v for name, v in moved.items() if name not in unset})


def _ends(tokens: list[int], ids: Seq[int]) -> bool:
    return not ids or tokens[-len(ids) :] == list(ids)


def _last(tokens: list[int], num: int) -> list[int]:
    return tokens[max(0, len(tokens) - num) :]
