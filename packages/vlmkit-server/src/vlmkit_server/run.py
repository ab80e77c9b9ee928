"""Runs the server: opens the port at once, and drains before it stops.

The first SIGTERM or SIGINT starts a drain: ``/readyz`` returns 503, new work is refused, running
answers finish until shortly before the deadline. At the deadline, all connections are closed. If
something hangs then, such as an engine, the process exits anyway. A second signal ends the process
at once. An engine that fails for good, or a server without any model, also starts a drain; it ends
with an error, so that a process supervisor can restart the server.
"""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence as Seq
from concurrent.futures import Future
from functools import partial
from types import FrameType, MappingProxyType
from typing import cast

import uvicorn

from vlmkit._version import __version__
from vlmkit.errors import ConfigError
from vlmkit.kit import heap
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.apis.builtin import APIS
from vlmkit_server.app import create_app
from vlmkit_server.exchange.service import KnownFields, Service
from vlmkit_server.fleet.fleet import OnLoaded
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Servable
from vlmkit_server.http.acceptor import Acceptor
from vlmkit_server.http.certificate import load_certificate
from vlmkit_server.http.connection import Connection, check_uvicorn
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.http.listening import health_listener, listener, shown
from vlmkit_server.http.open_files import ReserveDescriptor, raise_file_limit
from vlmkit_server.interfaces.api import Api
from vlmkit_server.interfaces.monitor import Monitor, Page
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_server.operate.event_loop_watch import EventLoopWatch, packages_of
from vlmkit_server.operate.health_listener import HealthListener
from vlmkit_server.operate.metrics import Scraper
from vlmkit_server.operate.notify import Notifier
from vlmkit_server.operate.supervisor import Supervisor
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.tools.toolbox import Toolbox

log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0  # at the end of a drain, for cancelled requests to send their error
EXIT_S = 1.0  # after the deadline, to close connections and models
UVICORN_S = 60  # uvicorn's own timeout, which is never reached


def serve(  # noqa: PLR0913 - one each of what a server consists of
    models: Mapping[str, Servable | Loader | ModelSpec],
    settings: ServerSettings | None = None,
    *,
    fetch: FetchSettings | None = None,
    apis: Mapping[str, Api] = APIS,
    tool_sources: Mapping[str, ToolSource] = MappingProxyType({}),
    monitors: Mapping[str, Monitor] = MappingProxyType({}),
    request_fields: KnownFields = MappingProxyType({}),
    component_names: ComponentNames = UNKNOWN,
    on_loaded: OnLoaded | None = None,
    on_listening: Callable[[int], None] | None = None,
) -> None:
    """Serve models until a signal arrives; closes every runner at the end.

    A model that cannot be loaded is logged, and its requests get a 503; the others are served.

    Args:
        models: by served name: runners, models, functions that load one, or specs, which also say
            when to load. Loaders run one after the other in a thread of their own, while the port
            is open.
        settings: the server's settings; the defaults when None.
        fetch: whether images named by URL are fetched; none are when None.
        apis: the APIs, each by its name.
        tool_sources: the sources of tools that requests may use; closed at the end.
        monitors: the monitors; closed at the end. They receive a model's request events from the
            pipeline's observers.
        request_fields: fields that plugins add to requests, for models that are loaded later;
            :func:`vlmkit_server.commands.components.request_fields` finds them, for example.
        component_names: names the providers of APIs, tool sources and monitors in errors and the
            log.
        on_loaded: called in a thread with the names of the loaded models, once every model that
            is loaded at startup is ready.
        on_listening: called with the port once connections are accepted, in the event loop: it must
            return quickly.

    Raises:
        PluginError: two APIs have the same route, or a route has no scope.
        ConfigError: the address must not or cannot be listened on, the models conflict, or the
            installed uvicorn is not supported.
        EngineFailed: a model's engine failed for good, or hangs; the server has stopped.
        VlmkitError: no model could be loaded: the last loader's error; the server has stopped.
    """
    check_uvicorn()
    heap.limit_arenas()
    settings = settings or ServerSettings()
    if settings.tls_certificate or settings.tls_private_key:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
    toolbox = Toolbox(tool_sources, component_names)
    service = Service(models, settings, toolbox, monitors, request_fields, component_names, fetch)
    service.fleet.on_loaded = partial(_settle, on_loaded)
    with contextlib.ExitStack() as last:
        try:
            with contextlib.closing(listener(settings)) as listening:
                with heap.paused_collection():
                    server = Server(service, apis, component_names, on_listening)
                last.callback(server.close)
                service.fleet.recovery.on_error(server.stop)
                last.callback(server.forget_exit)
                server.run(sockets=[listening])
                service.audit.note("ended")
        finally:
            service.fleet.close()
            service.close_logs()
            service.monitors.close()
            heap.unsettle()
    if service.fleet.recovery.error is not None:
        raise service.fleet.recovery.error


def _settle(on_loaded: OnLoaded | None, names: Seq[str]) -> None:
    """Exempt loaded objects from garbage collection, and report the models' names."""
    heap.settle()
    if on_loaded is not None:
        on_loaded(names)


class Server(uvicorn.Server):
    """A uvicorn server that drains before it shuts down."""

    def __init__(
        self,
        service: Service,
        apis: Mapping[str, Api] = APIS,
        component_names: ComponentNames = UNKNOWN,
        on_listening: Callable[[int], None] | None = None,
    ) -> None:
        self._service = service
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self._is_exit_requested = False
        self._exit: threading.Timer | None = None
        self._deadline_s = 0.0  # of the drain, by the event loop's clock
        self._acceptor: Acceptor | None = None
        settings = service.settings
        self._supervisor = Supervisor(service, Notifier(os.environ))
        self._loop_watch = EventLoopWatch(
            lambda: self._supervisor.sampled_s, packages_of(apis, component_names)
        )
        self._scraper = Scraper(service)
        self._health = self._opened_health(settings)
        self._reserve = ReserveDescriptor()  # before models open files
        quota = service.admission.limits.connections
        quota.limit = raise_file_limit(settings.max_connections)
        connection = type("Connection", (Connection,), {"settings": settings, "quota": quota})
        super().__init__(
            uvicorn.Config(
                create_app(
                    service,
                    scraper=self._scraper,
                    apis=apis,
                    component_names=component_names,
                ),
                http=connection,
                ws="none",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                ssl_certfile=settings.tls_certificate or None,
                ssl_keyfile=settings.tls_private_key or None,
                timeout_graceful_shutdown=UVICORN_S,
            )
        )

    def _opened_health(self, settings: ServerSettings) -> HealthListener | None:
        """Open the port of health probes, if one is set."""
        listening = health_listener(settings)
        if listening is None:
            return None
        metrics = self._metrics if settings.health_metrics else None
        return HealthListener(listening, self._supervisor.live, self._supervisor.ready, metrics)

    def _metrics(self, accept: str) -> "Future[Page]":
        """Create the metrics page in the event loop; called in any thread."""
        page = self._scraper.page(accept)
        try:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(page, self._loop)
        except RuntimeError:  # it has ended
            log.debug("metrics requested after shutdown")
        page.close()
        failed: Future[Page] = Future()
        failed.set_exception(Unavailable("the server is shutting down", code="server_draining"))
        return failed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the ports and start to accept connections."""
        self._loop = asyncio.get_running_loop()
        _on_hangup(self._reload)
        if self._health is not None:
            self._health.start()
            log.info("health probes on http://%s", shown(self._health.listener))
        await super().startup([])
        self._supervisor.sample()
        self._loop_watch.start()
        self._acceptor = Acceptor(
            self._connection,
            self._service.admission.limits.connections,
            self.config.ssl,
            self._service.settings.header_timeout_s,
            self._reserve,
        )
        self._acceptor.start(sockets or ())
        scheme = "https" if self.config.is_ssl else "http"
        for each in sockets or ():
            host, port = each.getsockname()[:2]
            log.info("listening on %s://%s", scheme, shown(each))
            versions = {"version": __version__, "python": platform.python_version()}
            self._service.audit.note("started", **versions, pid=os.getpid(), host=host, port=port)
            if self._on_listening is not None:
                self._on_listening(port)

    def _connection(self) -> Connection:
        """Create the protocol object of a connection."""
        connection = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return cast(Connection, connection)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, then the connections; those left at the deadline are aborted."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        self._loop_watch.stop()
        self._supervisor.end()
        closing = asyncio.get_running_loop().call_at(self._deadline_s, self._abort_connections)
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    def _abort_connections(self) -> None:
        """Abort open connections, of clients that read nothing for example."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Check the state of the server; called several times a second."""
        self._supervisor.sample()
        return await super().on_tick(counter)

    def close(self) -> None:
        """Close the port of health probes, last of all, and the reserve descriptor."""
        self._reserve.close()
        if self._health is not None:
            self._health.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal; end the process at the second."""
        if self._is_exit_requested or self._loop is None:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._is_exit_requested = self._service.admission.is_draining = True
        wait_s = self._service.settings.drain_timeout_s + EXIT_S
        self._exit = threading.Timer(wait_s, self._force_exit)
        self._exit.daemon = True
        self._exit.start()
        self.stop()

    def forget_exit(self) -> None:
        """Cancel the forced exit: the server has stopped."""
        if self._exit is not None:
            self._exit.cancel()

    def _force_exit(self) -> None:
        """End the process although something hangs; subprocesses end with it."""
        names = sorted(thread.name for thread in threading.enumerate() if thread is not self._exit)
        log.critical("shutdown hangs after the drain deadline: exit; threads: %s", ", ".join(names))
        logging.shutdown()
        os._exit(1)

    def stop(self) -> None:
        """Start the drain, then stop; may be called from any thread."""
        if self._loop is None:
            self.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._start_drain)

    def _reload(self) -> None:
        """Reload keys and certificates for new connections, and reopen log files."""
        settings = self._service.settings
        audit = self._service.audit
        self._supervisor.reload()
        self._service.reopen_logs()
        if self._service.keys is not None:
            changed = self._service.keys.reload()
            if changed is None:
                audit.note("keys_kept")
            else:
                audit.note("keys_read", added=changed.added, revoked=changed.revoked)
        if self.config.ssl is not None:
            try:
                load_certificate(self.config.ssl, settings)
            except ConfigError as error:
                log.error("reload failed, keeping the previous certificate: %s", error)  # noqa: TRY400
            else:
                log.info("certificate reloaded")
                audit.note("certificate_read")
        self._supervisor.reloaded()

    def _start_drain(self) -> None:
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        log.info("draining")
        timeout_s = self._service.settings.drain_timeout_s
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._supervisor.stop(timeout_s + EXIT_S)
        self._service.audit.note("draining")
        try:
            await self._service.admission.drain(
                timeout_s, last_words_s=min(LAST_WORDS_S, timeout_s / 5)
            )
        finally:
            self.should_exit = True


def _on_hangup(reload: Callable[[], None]) -> None:
    """Reload on SIGHUP, if the system has it and this is the main thread."""
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
