"""The cut-off of top-k and top-p in a row: the least logit that is kept.

Tokens exactly as likely as the last kept one are kept too. So neither a library's sort order nor
the rest of a batch breaks a tie. (Min-p is a distance from the largest logit, and needs no order.)
"""

from collections.abc import Callable
from typing import Any

from vlmkit.running.sampling.batch import Columns

LIGHTEST = -746.0  # exp(-746) is 0 in float64
Sums = Callable[[Any], Any]


def cutoff_logit(xp: Any, likeliest: Any, cols: Columns, target: Sums) -> Any:
    """Return ``[rows, 1]`` the least logits that top-k, and then top-p within it, keep.

    Args:
        xp: the namespace of the arrays.
        likeliest: ``[rows, num]`` each row's largest logits, largest first, float32.
        cols: the choices of the rows.
        target: maps the cumulative weights ``[rows, num]`` to the sums ``[rows, 1]`` that must be
            reached; none may be over the last cumulative weight.
    """
    scaled = likeliest / cols.temperatures
    reached = xp.cumulative_sum(xp.exp(scaled - scaled[:, :1]), axis=-1)
    is_before = reached < target(reached)
    num_before = xp.sum(is_before, axis=-1, keepdims=True, dtype=xp.int64)
    return likeliest[cols.order, num_before]


def top_p_target(cols: Columns) -> Sums:
    """Return the function of the sum that top-p must reach among what top-k keeps."""
    return lambda reached: cols.top_p * reached[cols.order, cols.last]


def truncated(xp: Any, logits: Any, is_kept: Any, cols: Columns) -> Any:
    """Return which tokens typical-p, then epsilon, eta and XTC keep, ``[rows, vocab]``.

    Each filter sees the probabilities that the earlier ones leave. Rows that use none of them do
    not change. (Meister et al., 2023, arXiv:2202.00666; Hewitt et al., 2022, arXiv:2210.15191.)

    Args:
        xp: the namespace of the arrays.
        logits: ``[rows, vocab]`` float32.
        is_kept: ``[rows, vocab]``: the tokens that earlier filters keep.
        cols: the choices of the rows.
    """
    scaled = logits / cols.temperatures
    scaled = xp.clip(scaled - xp.max(scaled, axis=-1, keepdims=True), min=LIGHTEST)
    weights = xp.exp(scaled)  # float64
    probs, mean, _ = _moments(xp, weights, scaled, is_kept, cols)
    gaps = xp.where(
        is_kept, xp.abs(scaled - mean), -cols.lowest
    )  # the distance of surprise from its mean
    order = xp.argsort(gaps, axis=-1)
    is_before = xp.cumulative_sum(xp.take_along_axis(probs, order, axis=-1), axis=-1)
    num_before = xp.sum(is_before < cols.typical_p, axis=-1, keepdims=True, dtype=xp.int64)
    last = xp.take_along_axis(order, xp.clip(num_before, max=logits.shape[-1] - 1), axis=-1)
    is_near = gaps <= xp.take_along_axis(gaps, last, axis=-1)
    is_kept = is_kept & (is_near | (cols.typical_p > 1.0))

    probs, _, _ = _moments(xp, weights, scaled, is_kept, cols)
    is_kept = is_kept & _is_likely(xp, probs, cols.epsilon)

    probs, mean, total = _moments(xp, weights, scaled, is_kept, cols)
    entropy = xp.log(total) - mean
    least = xp.minimum(cols.eta, xp.sqrt(cols.eta) * xp.exp(-entropy))
    is_kept = is_kept & _is_likely(xp, probs, least)

    probs, _, _ = _moments(xp, weights, scaled, is_kept, cols)
    is_top = (probs >= cols.xtc) & (probs > 0)
    lowest = xp.min(xp.where(is_top, scaled, -cols.lowest), axis=-1, keepdims=True)
    return is_kept & (scaled <= lowest)


def _is_likely(xp: Any, probs: Any, least: Any) -> Any:
    """Return which tokens have at least a probability, or the largest one of all."""
    return (probs >= least) | (probs == xp.max(probs, axis=-1, keepdims=True))


def _moments(xp: Any, weights: Any, scaled: Any, is_kept: Any, cols: Columns) -> tuple[Any, ...]:
    """Return the kept tokens' probabilities, mean scaled logit and sum of weights."""
    kept = xp.where(is_kept, weights, xp.zeros_like(cols.half))
    total = xp.sum(kept, axis=-1, keepdims=True)
    probs = kept / total
    return probs, xp.sum(probs * scaled, axis=-1, keepdims=True), total
