"""The process of a worker: opens its port, answers until it is asked to end, and drains."""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from vlmkit.errors import ConfigError
from vlmkit.interfaces.runner import Runner
from vlmkit_grpc.channel_options import server_options
from vlmkit_grpc.credentials import Access, SecretCheck
from vlmkit_grpc.protocol.worker_pb2_grpc import add_WorkerServicer_to_server
from vlmkit_grpc.service import WorkerService
from vlmkit_grpc.settings import WorkerSettings
from vlmkit_grpc.watch import CacheObserver

log = logging.getLogger(__name__)

SERVICE = "vlmkit.worker.v1.Worker"
STOP_S = 5.0  # for the last answers to be read
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Worker:
    """Serves a runner over gRPC until a signal, a drain, or the failure of the runner.

    Args:
        runner: answers the requests; closed by the caller.
        model_digest: of the files of its model, in hex; empty if it has none.
        settings: the limits.
        access: the address, and what gateways must prove.
        cache: collects the changes of the prefix cache; None if no gateway may watch them.

    Attributes:
        address: what the worker listens on, known once it does.
    """

    def __init__(
        self,
        runner: Runner,
        model_digest: str,
        settings: WorkerSettings,
        access: Access,
        cache: CacheObserver | None = None,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._settings = settings
        self._access = access
        self._model_digest = model_digest
        self.address = ""

    async def serve(self, on_listening: Callable[[WorkerService, str], None]) -> bool:
        """Serve, and return whether the end was wanted: False when the runner failed.

        Args:
            on_listening: called with the services and the address when the port is open.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        self._draining: asyncio.Task[bool] | None = None
        self._has_failed = False
        self._runner.on_failure(self._fail_soon)
        self._service = service = WorkerService(
            self._runner, self._model_digest, self._settings, self._cache, self._drain
        )
        server = self._server(service)
        await self._set_health(SERVING)
        await server.start()
        with suppress(NotImplementedError, RuntimeError):  # on Windows, or beside the main thread
            for each in (signal.SIGTERM, signal.SIGINT):
                drain = partial(self._drain, self._settings.drain_timeout_s)
                loop.add_signal_handler(each, drain)
        try:
            on_listening(service, self.address)
            await self._is_over.wait()
        finally:
            await self._set_health(NOT_SERVING)
            service.end()
            await server.stop(STOP_S)
        return not self._has_failed

    def _server(self, service: WorkerService) -> grpc.aio.Server:
        """Return a server with all services and an open port."""
        settings, (address, secret, credentials) = self._settings, self._access
        server = grpc.aio.server(
            interceptors=[SecretCheck(secret)] if secret else [],
            options=server_options(settings.keepalive_s, settings.max_streams),
            maximum_concurrent_rpcs=settings.max_streams,
        )
        add_WorkerServicer_to_server(service, server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        target = address.target
        try:
            if credentials is None:
                port = server.add_insecure_port(target)
            else:
                port = server.add_secure_port(target, credentials)
        except RuntimeError:
            raise ConfigError(
                f"the worker cannot listen on {target!r}",
                hint="set worker.listen to a free address of this machine",
            ) from None
        is_file = target.startswith("unix:")
        self.address = target if is_file else f"{target.rpartition(':')[0]}:{port}"
        return server

    def _fail_soon(self, _: BaseException) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        self._has_failed = True
        self._is_over.set()

    def _drain(self, timeout_s: float) -> "asyncio.Task[bool]":
        """Begin to drain, once, and return the task that does."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drained(timeout_s))
        return self._draining

    async def _drained(self, timeout_s: float) -> bool:
        """Refuse new requests, wait for the running ones, and end the worker."""
        log.info("the worker drains, for at most %.0f s", timeout_s)
        self._service.note_drain()
        await self._set_health(NOT_SERVING)
        is_empty = await asyncio.to_thread(self._runner.drain, timeout_s)
        self._is_over.set()
        return is_empty

    async def _set_health(self, status: int) -> None:
        """State the health of this process and of its service."""
        for name in ("", SERVICE):
            await self._health.set(name, status)
