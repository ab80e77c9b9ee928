"""The hook of vlmkit-yourname. Importing it imports neither torch nor vlmkit-torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import vlmkit
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    from vlmkit_torch.interfaces.torch_weights import WeightReader

VLMKIT_API = (1, 0)
METHOD = "yourname"


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    stated = checkpoint.config.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    return None if method == METHOD else f"it reads {METHOD!r} only"


def _build(context: BuildContext) -> "WeightReader":
    from vlmkit_yourname.weights import RowScaledReader

    return RowScaledReader(context.files)


@vlmkit.hookimpl(optionalhook=True)
def vlmkit_register_torch_weights(registry: "Registry[WeightReader]") -> None:
    """Offer ``engine.weights = "yourname"``."""
    registry.add(
        "yourname",
        _build,
        cannot_serve=_cannot_serve,
        description="eight bits with a scale for each row",
    )
