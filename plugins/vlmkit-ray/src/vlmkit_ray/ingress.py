"""The ingress: vlmkit's HTTP server in a process of Ray, whose models are deployments.

Its port is that of Ray Serve, so the settings of connections, TLS and drains have no effect here.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vlmkit.errors import EngineFailed
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.traces import log_of_worker
from vlmkit_ray.config_file import ConfigFile
from vlmkit_ray.runner import RayPeer, RayRunner
from vlmkit_ray.serve_interface import is_public
from vlmkit_server.configured import ConfiguredApp

log = logging.getLogger(__name__)


class Ingress:
    """Serves the APIs of a config.

    Args:
        file: the config.
        replicas: the handle of the deployment of each model, by the name of the model.
        start_timeout_s: time for the first replica of a model to be there.
    """

    def __init__(
        self, file: ConfigFile, replicas: Mapping[str, Any], start_timeout_s: float
    ) -> None:
        log_of_worker()
        file.check()
        self._replicas = replicas
        self._start_timeout_s = start_timeout_s
        self._configured = ConfiguredApp(
            file.path, {name: partial(self._runner, name) for name in replicas}, is_public()
        )

    def _runner(self, name: str, observers: Mapping[str, Callable[[], Observer | None]]) -> Runner:
        """Return a runner of the replicas of a model."""
        made = {key: make() for key, make in observers.items()}
        peer = RayPeer(self._replicas[name], name, self._start_timeout_s)
        return RayRunner(peer, {key: each for key, each in made.items() if each is not None})

    def __serve_build_asgi_app__(self) -> Any:
        return self._configured.app

    def check_health(self) -> None:
        """Report that a model failed for good, so that Ray Serve replaces the ingress.

        Raises:
            EngineFailed: a model failed for good.
        """
        if self._configured.error is not None:
            raise EngineFailed("a model of the ingress failed", hint="see the log of the ingress")

    def __del__(self) -> None:
        if (configured := getattr(self, "_configured", None)) is not None:
            configured.close()
