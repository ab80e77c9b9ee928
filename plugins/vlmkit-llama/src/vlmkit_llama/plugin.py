"""The hooks of vlmkit-llama. Imports nothing heavy: the build functions do."""

from typing import Any

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection
from vlmkit.kit.weight_files import gguf_file
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_llama.settings import EngineSettings

VLMKIT_API = (1, 0)
PRIORITY = 5
"""Below the 10 of vlmkit-torch, which also reads images."""


def _build_engine(context: BuildContext) -> Any:
    from vlmkit_llama.build import build_engine

    return build_engine(context)


def _examine_engine(context: BuildContext) -> str:
    from vlmkit_llama.build import examine_engine

    return examine_engine(context)


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    if checkpoint.file is None or gguf_file(checkpoint) is None:
        hint = "name a file that ends with .gguf, not its folder"
        return Objection("it reads GGUF files alone", hint=hint * checkpoint.has("*.gguf"))
    if "vision_config" in checkpoint.config:
        return Objection(
            "it answers about text alone, and the model has a vision tower",
            hint='engine.use = "torch" reads images; for text alone, put the GGUF file of the '
            "language model into a folder of its own",
        )
    return None


@hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "llama"``."""
    registry.add(
        "llama",
        _build_engine,
        cannot_serve=_cannot_serve,
        settings=EngineSettings,
        priority=PRIORITY,
        description="GGUF files through the library llama.cpp, in a subprocess; text alone",
        examine=_examine_engine,
        runner="subprocess",
    )
