"""The hooks of vlmkit-llama. Imports nothing heavy: the build functions do."""

from typing import Any

from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection
from vlmkit.kit.weight_files import gguf_file
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_llama.settings import EncoderSettings, EngineSettings, TokenizerSettings

VLMKIT_API = (1, 0)
PRIORITY = 5
"""Below the 10 of vlmkit-torch, which computes with the original precision."""
LAST = -10
"""Of the tokenizer: other engines take that of vlmkit-hf, and this engine takes its own."""


def _build_engine(context: BuildContext) -> Any:
    from vlmkit_llama.build import build_engine

    return build_engine(context)


def _build_encoder(context: BuildContext) -> Any:
    from vlmkit_llama.build import build_encoder

    return build_encoder(context)


def _build_tokenizer(context: BuildContext) -> Any:
    from vlmkit_llama.build import build_tokenizer

    return build_tokenizer(context)


def _examine_engine(context: BuildContext) -> str:
    from vlmkit_llama.build import examine_engine

    return examine_engine(context)


def _plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_llama.memory_plan import plan_engine

    return plan_engine(context, load)


def _plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_llama.memory_plan import plan_encoder

    return plan_encoder(context, load)


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    if gguf_file(checkpoint) is None:
        has_several = checkpoint.file is None and checkpoint.has("*.gguf")
        hint = "leave one GGUF file, and no safetensors, in the folder, or name the file"
        return Objection("it reads models in one GGUF file", hint=hint * has_several)
    return None


def _sees_nothing(checkpoint: Checkpoint) -> str | None:
    if (objection := _cannot_serve(checkpoint)) is not None:
        return objection
    return None if "vision_config" in checkpoint.config else "the model takes no images"


@hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "llama"``."""
    registry.add(
        "llama",
        _build_engine,
        cannot_serve=_cannot_serve,
        settings=EngineSettings,
        priority=PRIORITY,
        description="GGUF files through the library llama.cpp, in a subprocess",
        examine=_examine_engine,
        plan=_plan_engine,
        runner="subprocess",
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[Any]) -> None:
    """Offer ``media_encoder.use = "llama"``."""
    registry.add(
        "llama",
        _build_encoder,
        cannot_serve=_sees_nothing,
        settings=EncoderSettings,
        priority=PRIORITY,
        description="the mmproj file beside a GGUF file, through the library llama.cpp",
        plan=_plan_encoder,
    )


@hookimpl
def vlmkit_register_tokenizers(registry: Registry[Any]) -> None:
    """Offer ``tokenizer.use = "llama"``."""
    registry.add(
        "llama",
        _build_tokenizer,
        cannot_serve=_sees_nothing,
        settings=TokenizerSettings,
        priority=LAST,
        description="the tokenizer hf, with images as the library llama.cpp lays them out",
    )
