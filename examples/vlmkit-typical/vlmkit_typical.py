"""Locally typical sampling (Meister et al., 2023, arXiv:2202.00666) as a complete plugin."""

from collections.abc import Sequence as Seq
from typing import Annotated, Any, ClassVar

import array_api_compat
import msgspec

import vlmkit
from vlmkit.interfaces.sampler import Pick, Row, Sampler
from vlmkit.plugins.registry import Registry

VLMKIT_API = (1, 0)


class TypicalSampler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Draws from the tokens whose surprise is nearest to the mean, until they have this mass."""

    is_exact: ClassVar[bool] = False

    mass: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.95

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Return what picks a token of these; others only if a request forbids all of them."""
        pick = vlmkit.ArraySampler().prepare(rows)

        def pick_typical(logits: Any) -> Any:
            xp = array_api_compat.array_namespace(logits)
            shifted = (finite := xp.clip(logits, min=-1e4)) - xp.max(finite, axis=-1, keepdims=True)
            surprise = xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True)) - shifted
            gap = xp.abs(surprise - xp.sum(xp.exp(-surprise) * surprise, axis=-1, keepdims=True))
            probs = xp.exp(-xp.take_along_axis(surprise, xp.argsort(gap, axis=-1), axis=-1))
            is_near = xp.cumulative_sum(probs, axis=-1) - probs < self.mass
            limit = xp.max(xp.where(is_near, xp.sort(gap, axis=-1), 0.0), axis=-1, keepdims=True)
            loss = [[1e4 * row.sequence.params.temperature] for row in rows]
            return pick(logits - xp.where(gap > limit, xp.asarray(loss, device=logits.device), 0.0))

        return pick_typical


@vlmkit.hookimpl
def vlmkit_register_samplers(registry: Registry[Sampler]) -> None:
    """Offer ``sampler.use = "typical"``."""
    registry.add("typical", lambda context: context.settings, settings=TypicalSampler)
