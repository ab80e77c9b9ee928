"""The hooks of vlmkit-grpc. Imports nothing heavy: the build functions do."""

import importlib.util
from typing import Any

from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_grpc.addresses import SCHEME, worker_reference
from vlmkit_grpc.settings import (
    EncoderSettings,
    GrpcSettings,
    RemoteEncoderSettings,
    WorkerSettings,
)

VLMKIT_API = (1, 0)
VLMKIT_TABLES = {"worker": WorkerSettings, "encoder": EncoderSettings}
REQUIRED = {"grpc": "grpcio", "grpc_health": "grpcio-health-checking"}


def _why_not() -> str | None:
    missing = [name for module, name in REQUIRED.items() if not importlib.util.find_spec(module)]
    if not missing:
        return None
    return Objection(
        f"the package {' and '.join(missing)} is not installed", hint=install_command(*missing)
    )


def _build_worker(_: BuildContext) -> Any:
    from vlmkit_grpc.command import worker

    return worker


def _build_encoder_command(_: BuildContext) -> Any:
    from vlmkit_grpc.encoders.command import encoder

    return encoder


def _build_remote_encoder(context: BuildContext) -> MediaEncoder:
    from vlmkit_grpc.encoders.build import build_remote_encoder

    return build_remote_encoder(context)


def _examine_remote_encoder(context: BuildContext) -> str:
    from vlmkit_grpc.encoders.build import examine_remote_encoder

    return examine_remote_encoder(context)


def _plan_remote_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_grpc.encoders.build import plan_remote_encoder

    return plan_remote_encoder(context, load)


def _build_runner(context: BuildContext) -> Runner:
    from vlmkit_grpc.build import build_runner

    return build_runner(context)


def _examine(context: BuildContext) -> str:
    reference = worker_reference(context.reference)
    targets = [address.target for address in reference.addresses]
    return f"by {'workers' if targets[1:] else 'the worker'} at {', '.join(targets)}"


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Register ``vlmkit worker`` and ``vlmkit encoder``."""
    registry.add(
        "worker",
        _build_worker,
        why_not=_why_not,
        description="Run a model for gateways on this machine or others, over gRPC.",
    )
    registry.add(
        "encoder",
        _build_encoder_command,
        why_not=_why_not,
        description="Encode images of a model for workers on this machine or others, over gRPC.",
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[MediaEncoder]) -> None:
    """Offer ``media_encoder.use = "remote"``."""
    registry.add(
        "remote",
        _build_remote_encoder,
        settings=RemoteEncoderSettings,
        why_not=_why_not,
        examine=_examine_remote_encoder,
        plan=_plan_remote_encoder,
        description="large images in other processes, and the rest in this one",
    )


@hookimpl
def vlmkit_register_runners(registry: Registry[Runner]) -> None:
    """Answer for every model whose reference begins with ``grpc://``."""
    registry.add(
        "grpc",
        _build_runner,
        settings=GrpcSettings,
        schemes=(SCHEME,),
        why_not=_why_not,
        examine=_examine,
        description="a worker of vlmkit on this machine or another one",
    )
