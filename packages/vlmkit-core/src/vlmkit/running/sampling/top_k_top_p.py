"""What top-k and top-p leave of a row, as one number: the least logit that stays.

Tokens that are exactly as likely as the last that stays do stay: no tie is broken by the order in
which a library sorts, or by the rest of a batch. (Min-p is a distance from the largest logit, and
needs no order.)
"""

from collections.abc import Callable
from typing import Any

from vlmkit.running.sampling.batch import Columns

LIGHTEST = -746.0  # exp(-746) is 0 in float64
Sums = Callable[[Any], Any]


def min_kept_logit(xp: Any, likeliest: Any, own: Columns, wanted: Sums) -> Any:
    """Return ``[rows, 1]`` the least logits that top-k, and then top-p within it, keep.

    Args:
        xp: the arrays' namespace.
        likeliest: ``[rows, num]`` each row's largest logits, largest first, float32.
        own: the rows' columns.
        wanted: maps the sums ``[rows, num]`` of the first 1, 2, 3... weights to the sums
            ``[rows, 1]``, none over the last, that are to be reached.
    """
    scaled = likeliest / own.temperatures
    reached = xp.cumulative_sum(xp.exp(scaled - scaled[:, :1]), axis=-1)
    is_before = reached < wanted(reached)
    num_before = xp.sum(is_before, axis=-1, keepdims=True, dtype=xp.int64)
    return likeliest[own.order, num_before]


def share(own: Columns) -> Sums:
    """Return what top-p wants of the sum of what top-k keeps."""
    return lambda reached: own.top_p * reached[own.order, own.last]


def truncated(xp: Any, logits: Any, is_kept: Any, own: Columns) -> Any:
    """Return which tokens typical-p, then epsilon, eta and XTC keep, ``[rows, vocab]``.

    Each works on the probabilities that the filters before it leave. Rows that ask for none of
    them stay as they are. (Meister et al., 2023, arXiv:2202.00666; Hewitt et al., 2022,
    arXiv:2210.15191.)

    Args:
        xp: the arrays' namespace.
        logits: ``[rows, vocab]`` float32.
        is_kept: ``[rows, vocab]``: what the filters before these keep.
        own: the rows' columns.
    """
    scaled = logits / own.temperatures
    scaled = xp.clip(scaled - xp.max(scaled, axis=-1, keepdims=True), min=LIGHTEST)
    weights = xp.exp(scaled)  # float64
    probs, mean, _ = _moments(xp, weights, scaled, is_kept, own)
    gaps = xp.where(is_kept, xp.abs(scaled - mean), -own.lowest)  # as surprise from its mean
    order = xp.argsort(gaps, axis=-1)
    is_before = xp.cumulative_sum(xp.take_along_axis(probs, order, axis=-1), axis=-1)
    num_before = xp.sum(is_before < own.typical_p, axis=-1, keepdims=True, dtype=xp.int64)
    last = xp.take_along_axis(order, xp.clip(num_before, max=logits.shape[-1] - 1), axis=-1)
    is_near = gaps <= xp.take_along_axis(gaps, last, axis=-1)
    is_kept = is_kept & (is_near | (own.typical_p > 1.0))

    probs, _, _ = _moments(xp, weights, scaled, is_kept, own)
    is_kept = is_kept & _is_likely(xp, probs, own.epsilon)

    probs, mean, total = _moments(xp, weights, scaled, is_kept, own)
    entropy = xp.log(total) - mean
    least = xp.minimum(own.eta, xp.sqrt(own.eta) * xp.exp(-entropy))
    is_kept = is_kept & _is_likely(xp, probs, least)

    probs, _, _ = _moments(xp, weights, scaled, is_kept, own)
    is_top = (probs >= own.xtc) & (probs > 0)
    lowest = xp.min(xp.where(is_top, scaled, -own.lowest), axis=-1, keepdims=True)
    return is_kept & (scaled <= lowest)


def _is_likely(xp: Any, probs: Any, least: Any) -> Any:
    """Return which tokens have a least probability, or the largest of all."""
    return (probs >= least) | (probs == xp.max(probs, axis=-1, keepdims=True))


def _moments(xp: Any, weights: Any, scaled: Any, is_kept: Any, own: Columns) -> tuple[Any, ...]:
    """Return the probabilities of what is kept, its mean scaled logit, and its weights' sum."""
    kept = xp.where(is_kept, weights, xp.zeros_like(own.half))
    total = xp.sum(kept, axis=-1, keepdims=True)
    probs = kept / total
    return probs, xp.sum(probs * scaled, axis=-1, keepdims=True), total
