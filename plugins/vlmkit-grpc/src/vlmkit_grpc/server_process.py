"""A process that serves over gRPC: opens its port, answers until it is asked to end, and drains.

It knows no service. :mod:`vlmkit_grpc.worker` and :mod:`vlmkit_grpc.encoders.process` use it.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from vlmkit.errors import ConfigError
from vlmkit_grpc.channel_options import server_options
from vlmkit_grpc.credentials import Access, SecretCheck
from vlmkit_grpc.settings import ListenSettings

log = logging.getLogger(__name__)

STOP_S = 5.0  # for the last answers to be read
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Service(Protocol):
    """What a process serves."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""

    def note_drain(self) -> None:
        """Take note that the process drains."""

    def drained(self, timeout_s: float) -> Awaitable[bool]:
        """Refuse new requests, and return whether all running ones ended in time."""

    def end(self) -> None:
        """End all calls."""


class ServerProcess:
    """Serves until a signal, a drain, or a failure; made while its event loop runs.

    Args:
        section: the table of its settings, which is also its name in messages.
        service_names: the full names of its services, for health checks.
        settings: how it listens.
        access: the address, and what gateways must prove.
        whole_bytes: bytes of the largest message that a service takes in one piece; 0 if all
            exchange pieces of frames.

    Attributes:
        address: what it listens on, known once it does.
    """

    def __init__(
        self,
        section: str,
        service_names: Iterable[str],
        settings: ListenSettings,
        access: Access,
        whole_bytes: int = 0,
    ) -> None:
        self._section = section
        self._service_names = tuple(service_names)
        self._whole_bytes = whole_bytes
        self._settings = settings
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        self._draining: asyncio.Task[bool] | None = None
        self._has_failed = False
        self._health = health.aio.HealthServicer()
        self.address = ""

    async def serve(self, service: Service, on_listening: Callable[[], None]) -> bool:
        """Serve, and return whether the end was wanted: False after a failure.

        Args:
            service: what is served.
            on_listening: called when the port is open.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._service = service
        server = self._server()
        await self._set_health(SERVING)
        await server.start()
        with suppress(NotImplementedError, RuntimeError):  # on Windows, or beside the main thread
            for each in (signal.SIGTERM, signal.SIGINT):
                drain = partial(self.drain, self._settings.drain_timeout_s)
                self._loop.add_signal_handler(each, drain)
        try:
            on_listening()
            await self._is_over.wait()
        finally:
            await self._set_health(NOT_SERVING)
            service.end()
            await server.stop(STOP_S)
        return not self._has_failed

    def fail_soon(self, _: BaseException) -> None:
        """End the process because of a failure; may be called from any thread."""
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._fail)

    def drain(self, timeout_s: float) -> "asyncio.Task[bool]":
        """Begin to drain, once, and return the task that does."""
        if self._draining is None:
            self._draining = self._loop.create_task(self._drained(timeout_s))
        return self._draining

    def _server(self) -> grpc.aio.Server:
        """Return a server with all services and an open port."""
        settings, (address, secret, credentials) = self._settings, self._access
        server = grpc.aio.server(
            interceptors=[SecretCheck(secret)] if secret else [],
            options=server_options(settings.keepalive_s, settings.max_streams, self._whole_bytes),
            maximum_concurrent_rpcs=settings.max_streams,
        )
        self._service.add_to(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        target = address.target
        try:
            if credentials is None:
                port = server.add_insecure_port(target)
            else:
                port = server.add_secure_port(target, credentials)
        except RuntimeError:
            raise ConfigError(
                f"the {self._section} cannot listen on {target!r}",
                hint=f"set {self._section}.listen to a free address of this machine",
            ) from None
        is_file = target.startswith("unix:")
        self.address = target if is_file else f"{target.rpartition(':')[0]}:{port}"
        return server

    def _fail(self) -> None:
        self._has_failed = True
        self._is_over.set()

    async def _drained(self, timeout_s: float) -> bool:
        """Refuse new requests, wait for the running ones, and end the process."""
        log.info("the %s drains, for at most %.0f s", self._section, timeout_s)
        self._service.note_drain()
        await self._set_health(NOT_SERVING)
        is_empty = await self._service.drained(timeout_s)
        self._is_over.set()
        return is_empty

    async def _set_health(self, status: int) -> None:
        """State the health of this process and of its services."""
        for name in ("", *self._service_names):
            await self._health.set(name, status)
