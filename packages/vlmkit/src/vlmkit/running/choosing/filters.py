"""What top-k and top-p leave of a row, as one number: the least logit that stays.

Tokens that are exactly as likely as the last that stays do stay: no tie is broken by the order in
which a library sorts, or by the rest of a batch. (Min-p is a distance from the largest logit, and
needs no order.)
"""

from collections.abc import Callable
from typing import Any

from vlmkit.running.choosing.batch import Columns

Sums = Callable[[Any], Any]


def least_kept(xp: Any, likeliest: Any, own: Columns, wanted: Sums) -> Any:
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
