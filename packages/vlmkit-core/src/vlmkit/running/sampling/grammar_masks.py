"""Constraints at work on a step: the rows that keep to one lose the logits of all other tokens.

Applied before any sampler and looked at again after it, so no sampler can drop one. Whose
constraint cannot go on gets an error, alone. Rows of others keep their bits.
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
    """What goes to the device: arrays.

    Attributes:
        places: ``[rows]`` int64: where in the step the rows are.
        words: ``[rows, words]`` int32: the tokens that they may choose.
        lowest: ``[1, 1]`` float32: minus infinity.
    """

    places: Any
    words: Any
    lowest: Any


class GrammarMasks:
    """The tokens that each row of a step may choose.

    Args:
        items: those that have rows of logits, in their order.
        maker: how messages call who compiles constraints.
    """

    def __init__(self, items: Seq[WorkItem], maker: str = "the constraint") -> None:
        self._maker = maker
        self._masks: dict[Sequence, Words | VlmkitError] = {}
        self._places: list[int] = []
        self._words: list[Words] = []
        first = 0
        for item in items:
            if item.sequence.guide is not None and item.num_rows:
                self._masks[item.sequence] = self._found(item, first)
            first += item.num_rows

    def _found(self, item: WorkItem, first: int) -> Words | VlmkitError:
        """Return an item's masks ``[rows, words]``, or why there are none."""
        guide = item.sequence.guide
        masks: Words = guide.new_masks(item.num_rows)
        try:
            guide.fill(item.sequence, item.drafts, masks)
        except Exception as error:  # noqa: BLE001 - a matcher may raise anything
            return engine_error(f"{self._maker} failed on this request", error, repeats=True)
        known = np.flatnonzero(masks.any(axis=1))
        self._places += (first + known).tolist()
        self._words.append(masks[known])
        return masks

    def applied(self, logits: Any) -> Any:
        """Return logits ``[rows, vocab]``, minus infinity where a token may not follow.

        Args:
            logits: readable; left as they are.
        """
        if not self._places:
            return logits
        xp: Any = namespace_of(logits)
        sent = _Sent(
            np.array(self._places, np.int64),
            np.concatenate(self._words),
            np.full((1, 1), -np.inf, np.float32),
        )
        if not array_api_compat.is_numpy_array(logits):
            (sent,) = send(xp, array_api_compat.device(logits), sent)
        allowed = flags(xp, sent.words, logits.shape[-1])
        if len(self._places) == logits.shape[0]:
            return xp.where(allowed, logits, sent.lowest)
        masked = xp.astype(logits, xp.float32, copy=True)
        masked[sent.places, :] = xp.where(allowed, logits[sent.places, :], sent.lowest)
        return masked

    def kept(self, sequence: Sequence, chosen: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Return what was chosen for a sequence, up to a place of which nothing is known.

        Raises:
            ConstraintError: nothing may follow the sequence.
            EngineError: the constraint failed, or the sampler chose what may not follow.
        """
        masks = self._masks.get(sequence)
        if masks is None:
            return chosen
        if isinstance(masks, VlmkitError):
            raise masks
        for place, (sample, mask) in enumerate(zip(chosen, masks, strict=False)):
            if not mask.any():
                return chosen[:place]
            if not holds(mask, sample.token_id):
                raise Fault("sampler", "chose a token that the constraint does not allow")
        return chosen
