"""The hooks of vlmkit-ollama."""

from typing import TYPE_CHECKING

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    from vlmkit_server.interfaces.api import Api

VLMKIT_API = (1, 0)


def _build(_: BuildContext) -> "Api":
    from vlmkit_ollama.api import OllamaApi

    return OllamaApi()


@hookimpl
def vlmkit_register_apis(registry: "Registry[Api]") -> None:
    """Register ``apis.use = ["ollama"]``."""
    registry.add("ollama", _build, description="Ollama's chats, texts, embeddings and models.")
