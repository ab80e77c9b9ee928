"""Settings: the table ``[ray]`` of a config."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Positive, Seconds

Replicas = Annotated[int, Meta(ge=1, le=4096)]
Amount = Annotated[float, Meta(ge=0.0, le=4096.0)]
DelaySeconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[ray.replicas]``.

    Attributes:
        min_replicas: the fewest replicas of a model.
        max_replicas: the most replicas of a model.
        waiting_tokens: tokens of prompts that may wait for each replica; more start another one.
        upscale_delay_s: time for which more replicas must be needed before they are started.
        downscale_delay_s: time for which fewer must be needed before one is stopped.
        num_cpus: the processors that a replica reserves.
        num_gpus: the GPUs that a replica reserves; a part of one is possible.
        accelerator_type: the type of GPU that a node must have, as Ray names it.
        max_open_requests: the most open requests of one replica.
    """

    min_replicas: Replicas = 1
    max_replicas: Replicas = 1
    waiting_tokens: Positive = 8192
    upscale_delay_s: DelaySeconds = 10.0
    downscale_delay_s: DelaySeconds = 600.0
    num_cpus: Amount = 1.0
    num_gpus: Amount = 0.0
    accelerator_type: Annotated[str, Meta(max_length=256)] = ""
    max_open_requests: Annotated[int, Meta(ge=1, le=65_536)] = 1024


class ModelReplicaSettings(ReplicaSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table ``[[ray.models]]``: the replicas of one model.

    Attributes:
        name: the name of the model.
    """

    name: Annotated[str, Meta(min_length=1, max_length=256)]


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[ray]``.

    Attributes:
        ingress_replicas: replicas of the HTTP server. Each has rate limits, quotas and files of its
            own.
        ingress_cpus: the processors that one of them reserves.
        start_timeout_s: time for the first replica of a model to be there.
        drain_timeout_s: time for running requests to end before a replica is stopped.
        replicas: settings of models without a table of their own.
        models: settings of single models, in place of ``replicas``.
    """

    ingress_replicas: Replicas = 1
    ingress_cpus: Amount = 1.0
    start_timeout_s: Seconds = 1800.0
    drain_timeout_s: Seconds = 600.0
    replicas: ReplicaSettings = ReplicaSettings()
    models: tuple[ModelReplicaSettings, ...] = ()

    def of(self, model: str) -> ReplicaSettings:
        """Return the settings of the replicas of a model."""
        return next((each for each in self.models if each.name == model), self.replicas)
