"""The hook of vlmkit-yourname. Importing it imports neither torch nor vlmkit-torch."""

from typing import TYPE_CHECKING

import vlmkit
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    from vlmkit_torch.interfaces.torch_attention import AttentionBackend

VLMKIT_API = (1, 0)


def _build(_: BuildContext) -> "AttentionBackend":
    from vlmkit_yourname.attention import ExactAttention

    return ExactAttention()


@vlmkit.hookimpl(optionalhook=True)
def vlmkit_register_torch_attentions(registry: "Registry[AttentionBackend]") -> None:
    """Offer ``engine.attention = "yourname"``."""
    registry.add("yourname", _build, description="attention in double precision")
