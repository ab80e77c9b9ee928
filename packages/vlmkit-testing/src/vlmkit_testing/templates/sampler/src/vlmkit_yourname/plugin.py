"""Top-n-sigma sampling (Tang et al., 2024, arXiv:2411.07641).

Only tokens whose logits lie within ``n`` standard deviations of the highest one may be drawn.
Which these are does not depend on the temperature. vlmkit's own sampler does the rest: temperature,
penalties, bans, filters and seeds.
"""

from collections.abc import Sequence as Seq
from typing import Annotated, Any

import array_api_compat
import msgspec

import vlmkit
from vlmkit.interfaces.sampler import Pick, Row, Sampler
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
FAR = 1e4
"""What the logits of tokens lose that are out: enough to be drawn only where all else is banned."""


class SigmaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[sampler]`` beside ``use = "yourname"``.

    Attributes:
        n: standard deviations below the highest logit within which a token may be drawn.
    """

    n: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 1.0


class SigmaSampler:
    """Draws from the tokens near the top.

    Args:
        settings: how near.

    Attributes:
        is_exact: that draws follow the softmax of the logits; here, not all tokens can be drawn.
    """

    is_exact = False
    """Draws do not follow the softmax of the logits: it filters of its own accord."""

    def __init__(self, settings: SigmaSettings | None = None) -> None:
        self._settings = settings or SigmaSettings()

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Return what picks a token for each row; requests with temperature 0 are not touched."""
        pick = vlmkit.ArraySampler().prepare(rows)
        losses = [[FAR if row.sequence.params.temperature else 0.0] for row in rows]

        def pick_near(logits: Any) -> Any:
            """Map ``[rows, vocab]`` to ``[rows]``; what no constraint allows is minus infinity."""
            xp = array_api_compat.array_namespace(logits)
            loss = xp.asarray(losses, dtype=logits.dtype, device=logits.device)
            is_finite = xp.isfinite(logits)
            finite = xp.where(is_finite, logits, 0.0)
            num = xp.sum(xp.astype(is_finite, logits.dtype), axis=-1, keepdims=True) + 1e-9
            mean = xp.sum(finite, axis=-1, keepdims=True) / num
            gaps = xp.where(is_finite, finite - mean, 0.0)
            spread = xp.sqrt(xp.sum(gaps * gaps, axis=-1, keepdims=True) / num)
            highest = xp.max(xp.where(is_finite, logits, -3e38), axis=-1, keepdims=True)
            is_out = logits < highest - self._settings.n * spread
            return pick(xp.where(is_out, logits - loss, logits))

        return pick_near


def _build(context: BuildContext) -> Sampler:
    return SigmaSampler(context.settings)


@vlmkit.hookimpl
def vlmkit_register_samplers(registry: Registry[Sampler]) -> None:
    """Offer ``sampler.use = "yourname"``."""
    registry.add(
        "yourname", _build, settings=SigmaSettings, description="only tokens near the likeliest"
    )
