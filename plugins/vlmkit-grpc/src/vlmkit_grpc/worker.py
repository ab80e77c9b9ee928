"""The process of a worker: serves a runner over gRPC until it drains or fails."""

from collections.abc import Callable

from vlmkit.interfaces.runner import Runner
from vlmkit_grpc.credentials import Access
from vlmkit_grpc.server_process import ServerProcess
from vlmkit_grpc.service import WorkerService
from vlmkit_grpc.settings import WorkerSettings
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
        process = ServerProcess("worker", SERVICE, self._settings, self._access)
        self._runner.on_failure(process.fail_soon)
        service = WorkerService(
            self._runner, self._model_digest, self._settings, self._cache, process.drain
        )
        return await process.serve(service, lambda: on_listening(service, process.address))
