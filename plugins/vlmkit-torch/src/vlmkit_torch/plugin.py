"""The hooks of vlmkit-torch. Imports nothing heavy: the build functions do."""

from functools import partial
from typing import Any

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_torch.devices.own_thread import in_own_thread
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support import refusal, sizing

VLMKIT_API = (1, 0)


def _engine_cannot_serve(checkpoint: Checkpoint) -> str | None:
    return refusal.engine_cannot_serve(checkpoint) or sizing.objection(checkpoint)


def _build_engine(context: BuildContext) -> Any:
    sizing.refuse_too_large(context)  # before torch is imported, which takes seconds
    from vlmkit_torch.engine.torch_engine import build

    return in_own_thread(partial(build, context))


def _build_encoder(context: BuildContext) -> Any:
    sizing.refuse_too_large(context)
    from vlmkit_torch.vision.encoder import build

    return in_own_thread(partial(build, context))


def _examine_engine(context: BuildContext) -> str:
    from vlmkit_torch.loading.weights import examine

    return examine(context)


def _examine_encoder(context: BuildContext) -> str:
    from vlmkit_torch.loading.weights import examine_encoder

    return examine_encoder(context)


@hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "torch"``."""
    registry.add(
        "torch",
        _build_engine,
        why_not=refusal.why_not,
        cannot_serve=_engine_cannot_serve,
        settings=EngineSettings,
        priority=10,
        description="any decoder-only family of transformers; paged cache; CUDA, MPS, CPU",
        examine=_examine_engine,
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[Any]) -> None:
    """Offer ``media_encoder.use = "torch"``."""
    registry.add(
        "torch",
        _build_encoder,
        why_not=refusal.why_not,
        cannot_serve=refusal.encoder_cannot_serve,
        settings=EncoderSettings,
        priority=10,
        description="the image tower and projector of any family of transformers",
        examine=_examine_encoder,
    )
