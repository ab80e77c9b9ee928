"""Builds the application of Ray Serve: an ingress with the HTTP server, and replicas of each model.

``serve run`` and ``serve deploy`` call it in a process of their own, which loads no model.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from vlmkit.errors import ConfigError
from vlmkit_ray.autoscaling import WaitingTokensPolicy
from vlmkit_ray.config_file import ConfigFile
from vlmkit_ray.ingress import Ingress
from vlmkit_ray.model_replica import ModelReplica
from vlmkit_ray.serve_interface import ContentRouter
from vlmkit_ray.settings import RaySettings, ReplicaSettings
from vlmkit_server.configured import models_of

STATS_S = 1.0  # between two reports of a replica to routers
SPARE_CALLS = 256  # calls beside the open requests, for messages about them
MAX_INGRESS_CALLS = 65_536  # the server of the ingress has its own limits
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


def application(args: Mapping[str, str]) -> Any:
    """Return the application for a config.

    Args:
        args: ``config``, the path of the config.

    Raises:
        ConfigError: another argument is given, or the config is invalid or has no models.
    """
    if set(args) != {"config"}:
        raise ConfigError(
            f"vlmkit_ray:app takes the argument config, and has {sorted(args)}",
            hint="serve run vlmkit_ray:app config=vlmkit.toml",
        )
    file = ConfigFile.read(Path(args["config"]).resolve())
    names, settings = models_of(file.path, "ray", RaySettings)
    for each in settings.models:
        if each.name not in names:
            raise ConfigError(f"ray.models names {each.name!r}, and no model has this name")
    deployments = deployment_names(names)
    replicas = {
        name: _replicas(deployments[name], settings, settings.of(name)).bind(
            file, name, settings.of(name).max_open_requests
        )
        for name in names
    }
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=settings.ingress_replicas,
        max_ongoing_requests=MAX_INGRESS_CALLS,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        ray_actor_options={"num_cpus": settings.ingress_cpus},
        logging_config={"enable_access_log": False},
    )
    return ingress.bind(file, replicas, settings.start_timeout_s)


def _replicas(deployment: str, settings: RaySettings, of_model: ReplicaSettings) -> Any:
    """Return the deployment of one model."""
    reserved: dict[str, Any] = {"num_cpus": of_model.num_cpus, "num_gpus": of_model.num_gpus}
    if of_model.accelerator_type:
        reserved["accelerator_type"] = of_model.accelerator_type
    return serve.deployment(ModelReplica).options(
        name=deployment,
        max_ongoing_requests=of_model.max_open_requests + SPARE_CALLS,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        graceful_shutdown_wait_loop_s=1.0,
        ray_actor_options=reserved,
        autoscaling_config=AutoscalingConfig(
            min_replicas=of_model.min_replicas,
            max_replicas=of_model.max_replicas,
            upscale_delay_s=of_model.upscale_delay_s,
            downscale_delay_s=of_model.downscale_delay_s,
            policy=AutoscalingPolicy(
                policy_function=WaitingTokensPolicy,
                policy_kwargs={"waiting_tokens": of_model.waiting_tokens},
            ),
        ),
        request_router_config=RequestRouterConfig(
            request_router_class=ContentRouter, request_routing_stats_period_s=STATS_S
        ),
        logging_config={"enable_access_log": False},
    )


def deployment_names(models: Iterable[str]) -> dict[str, str]:
    """Return a name for the deployment of each model, without signs that Ray uses itself."""
    found: dict[str, str] = {}
    for model in models:
        plain = f"model-{_NOT_PLAIN.sub('-', model)}"
        is_taken = plain in found.values()
        digest = hashlib.sha256(model.encode()).hexdigest()[:8]
        found[model] = f"{plain}-{digest}" if is_taken else plain
    return found
