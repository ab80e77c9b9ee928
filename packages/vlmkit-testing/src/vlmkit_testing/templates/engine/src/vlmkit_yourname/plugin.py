"""Offers an engine for the packaged model ``mock``; the engine is imported when it is built.

Say in ``_cannot_serve`` which models yours runs.
"""

import vlmkit
from vlmkit.interfaces.engine import Engine
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_yourname.settings import AttentionSettings

VLMKIT_API = (1, 0)
SERVED = "mock"


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.model_type == SERVED else f"it serves only the model {SERVED!r}"


def _build(context: BuildContext) -> Engine:
    from vlmkit_yourname.engine import AttentionEngine

    return AttentionEngine(context.settings)


@vlmkit.hookimpl
def vlmkit_register_engines(registry: Registry[Engine]) -> None:
    """Offer ``engine.use = "yourname"``."""
    registry.add(
        "yourname",
        _build,
        cannot_serve=_cannot_serve,
        settings=AttentionSettings,
        description="one layer of attention with random weights",
    )
