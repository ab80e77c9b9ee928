"""The cut-offs of filters by probability for one row in host memory, found without sorting it.

Every filter keeps the tokens up to some distance from a centre: top-p measures from the likeliest
token, typical-p from the mean logit. The nearest tokens stay until their weights reach a sum. To
find that distance, the tokens are put into buckets by distance, and only one bucket is searched.
"""

import math

import numpy as np

from vlmkit.running.sampling.batch import Choice
from vlmkit.running.sampling.logit_changes import Numbers
from vlmkit.running.sampling.top_k_top_p import LIGHTEST

NUM_BUCKETS = 1024
SORTED_AT_MOST = 1024  # distances of one bucket


def distance_reached(distances: Numbers, weights: Numbers, target: float) -> float:
    """Return the least distance up to which weights reach a sum; the largest if none does.

    It reads each distance twice, and those of one bucket more often.

    Args:
        distances: ``[tokens]`` finite.
        weights: ``[tokens]`` not negative.
        target: the sum to reach.
    """
    while len(distances) > SORTED_AT_MOST:
        buckets = distances - (low := distances.min())
        if not (spread := buckets.max()):
            return float(low)
        buckets *= NUM_BUCKETS / spread
        bucket_ids = buckets.astype(np.int32)
        sums = np.bincount(bucket_ids, weights, NUM_BUCKETS + 1).cumsum()
        found = min(int(sums.searchsorted(target)), NUM_BUCKETS)
        some = np.flatnonzero(bucket_ids == found)
        target -= sums[found - 1] if found else 0.0
        distances, weights = distances[some], weights[some]
    order = np.argsort(distances)
    rank = int(weights[order].cumsum().searchsorted(target))
    return float(distances[order[min(rank, len(order) - 1)]])


class ProbabilityCutoff:
    """The tokens of a row that filters keep; each filter sees what the earlier ones kept.

    Args:
        logits: ``[vocab]`` float32, the largest of them finite.
        temperature: divides the logits.

    Attributes:
        is_kept: ``[vocab]`` which tokens are kept.
    """

    def __init__(self, logits: Numbers, temperature: float) -> None:
        self._logits = logits
        scaled = logits.astype(np.float64)
        scaled -= float(logits.max())
        scaled /= temperature
        np.maximum(scaled, LIGHTEST, out=scaled)
        self._scaled = scaled
        self._weights = np.exp(scaled)
        self.is_kept = logits > -math.inf

    def apply(self, choice: Choice) -> None:
        """Apply a choice's top-k, top-p, min-p, typical-p, epsilon, eta and XTC, in order."""
        if 0 < choice.top_k < len(self._logits) or choice.top_p < 1.0:
            self._keep(self._scaled >= self._floor(choice.top_k, choice.top_p))
        if choice.depth > -math.inf:  # compared in float64, as where rows are not truncated
            self._keep(self._logits >= np.float64(self._logits.max()) + choice.depth)
        if choice.typical_p <= 1.0:
            self.keep_typical(choice.typical_p)
        if choice.epsilon:
            self._keep_likely(choice.epsilon)
        if choice.eta:
            total, mean = self._moments()
            entropy = math.log(total) - mean
            self._keep_likely(min(choice.eta, math.sqrt(choice.eta) * math.exp(-entropy)))
        if choice.xtc <= 1.0:
            self._drop_likely(choice.xtc)

    def left(self) -> Numbers:
        """Return the logits ``[vocab]`` float32, minus infinity where a token is dropped."""
        with np.errstate(divide="ignore"):
            return self._logits + np.log(self.is_kept.astype(np.float32))

    def keep_typical(self, mass: float) -> None:
        """Keep the tokens whose surprise is nearest to the mean, until their mass reaches a share.

        Surprise falls with the logit, so these are the tokens nearest to the mean logit (Meister et
        al., 2023, arXiv:2202.00666).
        """
        total, mean = self._moments()
        gaps = np.abs(self._scaled - mean)
        self._keep(gaps <= distance_reached(gaps, self._weights, mass * total))

    def _floor(self, top_k: int, top_p: float) -> float:
        """Return the least logit, scaled, that top-k and then top-p within it keep."""
        scaled, weights = self._scaled, self._weights
        floor, total = -math.inf, 0.0
        if 0 < top_k < len(scaled):
            floor = float(np.partition(scaled, -top_k)[-top_k])
            is_above = scaled > floor
            total = float((weights * is_above).sum())
            total += (top_k - np.count_nonzero(is_above)) * math.exp(floor)
            weights = weights * (scaled >= floor)
        if top_p < 1.0:
            target = top_p * (total or float(weights.sum()))
            floor = max(floor, -distance_reached(-scaled, weights, target))
        return floor

    def _keep_likely(self, least: float) -> None:
        """Drop tokens below a probability, except the likeliest token.

        Hewitt et al., 2022, arXiv:2210.15191.
        """
        total, largest = float(self._weights.sum()), float(self._weights.max())
        self._keep(self._weights >= min(least * total, largest))

    def _drop_likely(self, threshold: float) -> None:
        """Drop all tokens at or above a threshold but the least likely of them: XTC."""
        is_top = self._weights >= threshold * float(self._weights.sum())
        is_top &= self._weights > 0
        if is_top.any():
            self._keep(self._scaled <= self._scaled[is_top].min())

    def _moments(self) -> tuple[float, float]:
        """Return the sum of the kept weights, and the mean of the kept scaled logits."""
        total = float(self._weights.sum())
        return total, float((self._weights * self._scaled).sum()) / total

    def _keep(self, is_kept: Numbers) -> None:
        self.is_kept &= is_kept
        self._weights *= self.is_kept
