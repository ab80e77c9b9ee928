"""The hooks of vlmkit-onnx. Imports nothing heavy: the build functions do."""

from collections.abc import Iterable
from typing import Any

from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.kit import heap
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_onnx.folder import export_cache, refusal
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

VLMKIT_API = (1, 0)


def _build_engine(context: BuildContext) -> Any:
    with heap.paused_collection():
        from vlmkit_onnx.build import build_engine

    return build_engine(context)


def _build_encoder(context: BuildContext) -> Any:
    with heap.paused_collection():
        from vlmkit_onnx.build import build_encoder

    return build_encoder(context)


def _examine_engine(context: BuildContext) -> str:
    from vlmkit_onnx.build import examine_engine

    return examine_engine(context)


def _examine_encoder(context: BuildContext) -> str:
    from vlmkit_onnx.build import examine_encoder

    return examine_encoder(context)


def _plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_onnx.memory_plan import plan_engine

    return plan_engine(context, load)


def _plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_onnx.memory_plan import plan_encoder

    return plan_encoder(context, load)


def _build_export(context: BuildContext) -> Any:
    from vlmkit_onnx.export.command import export_command

    return export_command(context)


def _engine_cannot_serve(checkpoint: Checkpoint) -> str | None:
    return refusal.engine_cannot_serve(checkpoint) or _cannot_be_exported(
        checkpoint, refusal.DECODERS
    )


def _encoder_cannot_serve(checkpoint: Checkpoint) -> str | None:
    return refusal.encoder_cannot_serve(checkpoint) or _cannot_be_exported(
        checkpoint, export_cache.TOWERS.values()
    )


def _cannot_be_exported(checkpoint: Checkpoint, parts: Iterable[export_cache.Part]) -> str | None:
    """Return why the exporter would refuse a model without graphs; None if it would not."""
    if refusal.kind_of(checkpoint) != "weights":
        return None
    if any(export_cache.finished(checkpoint, part) for part in parts):
        return None
    from vlmkit_onnx.export.refusal import objection

    return objection(checkpoint)


@hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "onnx"``."""
    registry.add(
        "onnx",
        _build_engine,
        why_not=refusal.why_not,
        cannot_serve=_engine_cannot_serve,
        settings=EngineSettings,
        priority=refusal.priority,
        description="ONNX graphs of three layouts, batched over cache slots; fast on CPUs",
        examine=_examine_engine,
        plan=_plan_engine,
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[Any]) -> None:
    """Offer ``media_encoder.use = "onnx"``."""
    registry.add(
        "onnx",
        _build_encoder,
        why_not=refusal.why_not,
        cannot_serve=_encoder_cannot_serve,
        settings=EncoderSettings,
        priority=refusal.priority,
        description="the image tower and projector as one ONNX graph",
        examine=_examine_encoder,
        plan=_plan_encoder,
    )


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Offer ``vlmkit export``."""
    registry.add(
        "export", _build_export, description="Write a model as ONNX graphs, for vlmkit-onnx."
    )
