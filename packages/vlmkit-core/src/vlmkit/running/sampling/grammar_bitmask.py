"""The grammar bitmask of a step: constrained rows lose the logits of all forbidden tokens.

It is applied before the sampler and checked after it, so no sampler can bypass it. A request
whose constraint allows no token fails alone. The logits of unconstrained rows do not change.
"""

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.running.faults.attribution import Fault
from vlmkit.running.faults.isolation import engine_error
from vlmkit.running.sampling.array_namespace import namespace_of
from vlmkit.running.sampling.batch import send
from vlmkit.running.sampling.token_sets import Words, flags, holds
from vlmkit.types.sample import Sample


class _Sent(NamedTuple):
    """The arrays that are sent to the device.

    Attributes:
        rows: ``[rows]`` int64: indices of the constrained rows in the step.
        words: ``[rows, words]`` int32: bitmasks of the allowed tokens.
        lowest: ``[1, 1]`` float32: minus infinity.
    """

    rows: Any
    words: Any
    lowest: Any


class GrammarBitmask:
    """The allowed tokens of each constrained row of a step.

    Args:
        items: the items with rows of logits, in order.
        compiler_name: the name of the constraint compiler in messages.
    """

    def __init__(self, items: Seq[WorkItem], compiler_name: str = "the constraint") -> None:
        self._compiler_name = compiler_name
        self._masks: dict[Sequence, Words | VlmkitError] = {}
        self._rows: list[int] = []
        self._words: list[Words] = []
        first = 0
        for item in items:
            if item.sequence.guide is not None and item.num_rows:
                self._masks[item.sequence] = self._bitmask_of(item, first)
            first += item.num_rows

    def _bitmask_of(self, item: WorkItem, first: int) -> Words | VlmkitError:
        """Return the bitmasks ``[rows, words]`` of an item, or the error that prevents them."""
        guide = item.sequence.guide
        masks: Words = guide.allocate_bitmask(item.num_rows)
        try:
            guide.fill(item.sequence, item.drafts, masks)
        except Exception as error:  # noqa: BLE001 - a matcher may raise anything
            return engine_error(
                f"{self._compiler_name} failed on this request", error, may_quote_input=True
            )
        known = np.flatnonzero(masks.any(axis=1))
        self._rows += (first + known).tolist()
        self._words.append(masks[known])
        return masks

    def apply(self, logits: Any) -> Any:
        """Return logits ``[rows, vocab]``, minus infinity where a token may not follow.

        Args:
            logits: not changed.
        """
        if not self._rows:
            return logits
        xp: Any = namespace_of(logits)
        sent = _Sent(
            np.array(self._rows, np.int64),
            np.concatenate(self._words),
            np.full((1, 1), -np.inf, np.float32),
        )
        if not array_api_compat.is_numpy_array(logits):
            (sent,) = send(xp, array_api_compat.device(logits), sent)
        allowed = flags(xp, sent.words, logits.shape[-1])
        if len(self._rows) == logits.shape[0]:
            return xp.where(allowed, logits, sent.lowest)
        masked = xp.astype(logits, xp.float32, copy=True)
        masked[sent.rows, :] = xp.where(allowed, logits[sent.rows, :], sent.lowest)
        return masked

    def checked(self, sequence: Sequence, chosen: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Return the tokens chosen for a sequence, up to the first row without a mask.

        Raises:
            ConstraintError: nothing may follow the sequence.
            EngineError: the constraint failed, or the sampler chose a token that is not allowed.
        """
        masks = self._masks.get(sequence)
        if masks is None:
            return chosen
        if isinstance(masks, VlmkitError):
            raise masks
        for index, (sample, mask) in enumerate(zip(chosen, masks, strict=False)):
            if not mask.any():
                return chosen[:index]
            if not holds(mask, sample.token_id):
                raise Fault("sampler", "chose a token that the constraint does not allow")
        return chosen
