"""Offers an encoder that computes in other processes, for the packaged model ``mock``.

Put your model in ``worker.py``, and say in ``_cannot_serve`` whose pictures it knows.
"""

from typing import Annotated

import msgspec

import vlmkit
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
SERVED = "mock"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[media_encoder]`` beside ``use = "yourname"``.

    Attributes:
        timeout_s: time that one batch of pictures may take, and the start of the process.
        num_processes: processes that encode at the same time.
    """

    timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 60.0
    num_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.model_type == SERVED else f"it serves only the model {SERVED!r}"


def _build(context: BuildContext) -> MediaEncoder:
    from vlmkit_yourname.encoder import ProcessEncoder

    settings: WorkerSettings = context.settings
    return ProcessEncoder(settings.timeout_s, num_processes=settings.num_processes)


@vlmkit.hookimpl
def vlmkit_register_media_encoders(registry: Registry[MediaEncoder]) -> None:
    """Offer ``media_encoder.use = "yourname"``."""
    registry.add(
        "yourname",
        _build,
        cannot_serve=_cannot_serve,
        settings=WorkerSettings,
        description="features computed in a process of their own",
    )
