"""The hooks of vlmkit-webui."""

from typing import TYPE_CHECKING

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_webui.settings import WebPageSettings

if TYPE_CHECKING:
    from vlmkit_server.interfaces.api import Api

VLMKIT_API = (1, 0)


def _build(context: BuildContext) -> "Api":
    from vlmkit_webui.api import WebPageApi

    return WebPageApi(context.settings)


@hookimpl
def vlmkit_register_apis(registry: "Registry[Api]") -> None:
    """Register ``apis.use = ["webui"]``."""
    registry.add(
        "webui",
        _build,
        settings=WebPageSettings,
        description="A web page to talk to the models, at GET /.",
    )
