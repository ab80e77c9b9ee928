"""Registers the API of this distribution.

Every command imports this module, so it must not import the web framework.
"""

from typing import TYPE_CHECKING

import vlmkit
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    from vlmkit_server.interfaces.api import Api

VLMKIT_API = (1, 0)


def _build(_: BuildContext) -> "Api":
    from vlmkit_yourname.api import Questions

    return Questions()


@vlmkit.hookimpl
def vlmkit_register_apis(registry: "Registry[Api]") -> None:
    """Register the API, which a server then has by default."""
    registry.add("yourname", _build, description="questions for shell scripts")
