"""The process of a worker: serves a runner over gRPC until it drains or fails."""

from collections.abc import Callable

import grpc

from vlmkit.interfaces.runner import Runner
from vlmkit_grpc.credentials import Access
from vlmkit_grpc.server_process import ServerProcess
from vlmkit_grpc.service import WorkerService
from vlmkit_grpc.settings import WorkerSettings
from vlmkit_grpc.vllm.service import SERVICES as VLLM_SERVICES, VllmServices, request_bytes
from vlmkit_grpc.watch import CacheObserver

SERVICE = "vlmkit.worker.v1.Worker"


class Worker:
    """Serves a runner over gRPC until a signal, a drain, or the failure of the runner.

    Args:
        runner: answers the requests; closed by the caller.
        model_digest: of the files of its model, in hex; empty if it has none.
        settings: the limits.
        access: the address, and what gateways must prove.
        cache: collects the changes of the prefix cache; None if no gateway may watch them.
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

    async def serve(self, on_listening: Callable[[WorkerService, str], None]) -> bool:
        """Serve, and return whether the end was wanted: False when the runner failed.

        Args:
            on_listening: called with the services and the address when the port is open.

        Raises:
            ConfigError: the address cannot be used.
        """
        settings, runner = self._settings, self._runner
        has_vllm = settings.vllm_services
        process = ServerProcess(
            "worker",
            [SERVICE, *(VLLM_SERVICES if has_vllm else ())],
            settings,
            self._access,
            request_bytes(runner.facts.limits) if has_vllm else 0,
        )
        runner.on_failure(process.fail_soon)
        own = WorkerService(runner, self._model_digest, settings, self._cache, process.drain)
        vllm = VllmServices(runner, settings.stall_timeout_s) if has_vllm else None
        return await process.serve(_Services(own, vllm), lambda: on_listening(own, process.address))


class _Services:
    """The services of one worker, which have the same runner.

    Args:
        own: for gateways.
        vllm: for vllm-router; None if it is not served.
    """

    def __init__(self, own: WorkerService, vllm: VllmServices | None) -> None:
        self._own = own
        self._all: list[WorkerService | VllmServices] = [own] if vllm is None else [own, vllm]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add all services to a server."""
        for each in self._all:
            each.add_to(server)

    def note_drain(self) -> None:
        """Let all services take note that the worker drains."""
        for each in self._all:
            each.note_drain()

    async def drained(self, timeout_s: float) -> bool:
        """Refuse new requests, and return whether all running ones ended in time."""
        return await self._own.drained(timeout_s)

    def end(self) -> None:
        """End all calls."""
        for each in self._all:
            each.end()
