"""Runs the server: one port, open at once, and a clean end.

The first SIGTERM or SIGINT starts a drain: ``/readyz`` says 503, new work is refused, running
answers finish until the deadline. A second one ends the process at once. An engine that fails for
good, and a server that has no model at all, start a drain whose end is an error: who watches the
process can start another.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence as Seq
from functools import partial
from types import FrameType, MappingProxyType

import uvicorn

from vlmkit.config.providers import described
from vlmkit.errors import ConfigError, EngineError, VlmkitError
from vlmkit.seams.runner import Runner
from vlmkit.seams.tool_source import ToolSource
from vlmkit.server.app import create_app
from vlmkit.server.connection import Connection
from vlmkit.server.gate import is_loopback
from vlmkit.server.service import Served, Service, runner_of
from vlmkit.server.toolbox import Toolbox
from vlmkit.settings.server import ServerSettings

log = logging.getLogger(__name__)

Loader = Callable[[], Served]
OnLoaded = Callable[[Seq[str]], None]
LAST_WORDS_S = 5  # for requests that were cut off to send their error


def _tell_nobody(_names: Seq[str]) -> None:
    pass


def serve(
    models: Mapping[str, Served | Loader],
    settings: ServerSettings | None = None,
    *,
    tool_sources: Mapping[str, ToolSource] = MappingProxyType({}),
    on_loaded: OnLoaded = _tell_nobody,
) -> None:
    """Serve models until a signal ends it; closes every runner at the end.

    A model that cannot be loaded is logged, and its requests get a 503; the others are served.

    Args:
        models: by the name they are served under: runners, models, or functions that load one.
            Those run one after the other in a thread of their own, while the port answers already.
        settings: the defaults when None.
        tool_sources: whose tools requests may ask for; they are closed at the end.
        on_loaded: called with the names of the models that are served, when loading is over.

    Raises:
        ConfigError: the address may not or cannot be listened on.
        EngineError: a model's engine failed for good; the server is down then.
        VlmkitError: no model could be loaded: what the last loader raised. The same holds.
    """
    settings = settings or ServerSettings()
    service = Service(models, settings, Toolbox(tool_sources))
    server = Server(service)
    loading = _Loading(service, models, server.stop)
    listener = _listener(settings)
    loading.start(on_loaded)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        loading.close()
    if loading.error is not None:
        raise loading.error


class Server(uvicorn.Server):
    """Uvicorn, with a drain before its shutdown."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self._is_told_to_end = False
        settings = service.settings
        connection = type("Connection", (Connection,), {"settings": settings})
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=connection,
                ws="none",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=settings.max_connections,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal; end the process at the second."""
        if self._is_told_to_end or self._loop is None:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._is_told_to_end = self._service.is_draining = True
        self.stop()

    def stop(self) -> None:
        """Start to drain and then stop; may be called from any thread."""
        if self._loop is None:
            self.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        log.info("draining")
        await self._service.drain(self._service.settings.drain_timeout_s)
        self.should_exit = True


class _Loading:
    """Loads models one after the other, beside the server, and hears of those that die.

    Args:
        service: gets the models.
        models: runners, models, or functions that load one.
        on_failure: called in any thread when there is a first ``error``.
    """

    def __init__(
        self,
        service: Service,
        models: Mapping[str, Served | Loader],
        on_failure: Callable[[], None],
    ) -> None:
        self._service = service
        self._models = models
        self._on_failure = on_failure
        self._runners: list[Runner] = []
        self.error: Exception | None = None
        for name, model in models.items():
            if isinstance(model, Served):
                self._add(name, model)

    def start(self, on_loaded: OnLoaded) -> None:
        """Load in a thread; it does not keep a process alive that is asked to end."""
        threading.Thread(
            target=self._run, args=(on_loaded,), name="vlmkit-load", daemon=True
        ).start()

    def close(self) -> None:
        """Close every runner that was loaded, whether or not another one can be closed."""
        for runner in self._runners:
            try:
                runner.close()
            except Exception as error:
                log.exception("model %r could not be closed", runner.facts.name)
                self._fail(error)

    def _run(self, on_loaded: OnLoaded) -> None:
        for name, load in self._models.items():
            if isinstance(load, Served):
                continue
            self._service.models[name].start()
            try:
                self._add(name, load())
            except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
                self._service.models[name].fail()
                if self._service.has_failed:
                    self._fail(_as_exception(name, error))
                    return
                _log_failure(name, error)
        on_loaded([name for name, model in self._service.models.items() if model.runner])

    def _add(self, name: str, served: Served) -> None:
        runner = runner_of(served)
        self._runners.append(runner)
        self._service.models[name].finish(runner)
        log.info("model %r is ready", name)
        runner.on_failure(partial(self._note_death, name))

    def _note_death(self, name: str, cause: BaseException) -> None:
        error = EngineError(
            f"the engine of model {name!r} failed, and the server ended",
            hint="the log says why; start the server again",
        )
        error.__cause__ = cause
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            self._on_failure()


def _as_exception(name: str, error: BaseException) -> Exception:
    """Return what ``serve`` can raise: a panic in a thread must not pass for a wish to exit."""
    if isinstance(error, Exception):
        return error
    failure = EngineError(f"model {name!r} could not be loaded: {type(error).__name__}")
    failure.__cause__ = error
    return failure


def _log_failure(name: str, error: BaseException) -> None:
    """Write for the operator why a model is not served; where that is a bug, with its trace."""
    hint = getattr(error, "hint", "")
    text = f"{described(error)} ({hint})" if hint else described(error)
    trace = None if isinstance(error, VlmkitError) else error
    log.error("model %r could not be loaded: %s", name, text, exc_info=trace)


def _listener(settings: ServerSettings) -> socket.socket:
    """Open the port."""
    host, port = settings.host, settings.port
    if not is_loopback(host) and not settings.allow_public_without_key:
        raise ConfigError(
            f"host {host!r} can be reached by other machines, and there is no API key yet",
            hint="listen on 127.0.0.1 behind a proxy that asks for one, or set "
            "server.allow_public_without_key",
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or "").partition(" (while ")[0]  # Python repeats the address
        raise ConfigError(
            f"host {host!r}, port {port!r} cannot be listened on: {reason}",
            hint="choose another server.port",
        ) from error
