"""Runs the server: one port, open at once, and a clean end.

The first SIGTERM or SIGINT starts a drain: ``/readyz`` says 503, new work is refused, running
answers finish until shortly before the deadline, and at the deadline all connections are closed.
What hangs then, such as an engine, is given up with the process. A second signal ends the process
at once. An engine that fails for
good, and a server that has no model at all, start a drain whose end is an error: who watches the
process can start another.
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
from vlmkit_server.app import create_app
from vlmkit_server.exchange.service import KnownFields, Service
from vlmkit_server.fleet.fleet import OnLoaded
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Served
from vlmkit_server.http.acceptor import Acceptor
from vlmkit_server.http.certificate import load_certificate
from vlmkit_server.http.connection import Connection
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.http.listening import health_listener, listener, shown
from vlmkit_server.http.open_files import ReserveDescriptor, raise_file_limit
from vlmkit_server.interfaces.monitor import Monitor, Page
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_server.operate.health_listener import HealthListener
from vlmkit_server.operate.metrics import Scraper
from vlmkit_server.operate.notify import Notifier
from vlmkit_server.operate.supervisor import Supervisor
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.tools.toolbox import Toolbox

log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0  # at the end of a drain, for requests that were cut off to send their error
EXIT_S = 1.0  # after the deadline, for connections and models to be closed
UVICORN_S = 60  # uvicorn's own bound, which is never reached


def serve(
    models: Mapping[str, Served | Loader | ModelSpec],
    settings: ServerSettings | None = None,
    *,
    fetch: FetchSettings | None = None,
    tool_sources: Mapping[str, ToolSource] = MappingProxyType({}),
    monitors: Mapping[str, Monitor] = MappingProxyType({}),
    request_fields: KnownFields = MappingProxyType({}),
    component_names: ComponentNames = UNKNOWN,
    on_loaded: OnLoaded | None = None,
) -> None:
    """Serve models until a signal ends it; closes every runner at the end.

    A model that cannot be loaded is logged, and its requests get a 503; the others are served.

    Args:
        models: by the name they are served under: runners, models, functions that load one, or
            offers, which say more of when that is done. Those run one after the other in a thread
            of their own, while the port answers already.
        settings: the defaults when None.
        fetch: whether images are fetched that requests name by URL; none are when None.
        tool_sources: whose tools requests may ask for; they are closed at the end.
        monitors: who looks on; they are closed at the end. How the requests of a model fare they
            are told by their observers, which are the pipeline's.
        request_fields: fields that plugins added to requests, where a model that takes them is
            loaded later; of :func:`vlmkit_server.commands.components.request_fields`, for example.
        component_names: how the log calls who made the sources of tools and the monitors.
        on_loaded: called in a thread with the names of the models that are there, when all are
            loaded that are to be from the start.

    Raises:
        ConfigError: the address may not or cannot be listened on, or the models do not go together.
        EngineFailed: a model's engine failed for good, or hangs; the server is down then.
        VlmkitError: no model could be loaded: what the last loader raised. The same holds.
    """
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
                server = Server(service)
                last.callback(server.close)
                service.fleet.tell_errors(server.stop)
                last.callback(server.forget_exit)
                server.run(sockets=[listening])
                service.audit.note("ended")
        finally:
            service.fleet.close()
            service.close_logs()
            service.monitors.close()
            heap.unsettle()
    if service.fleet.error is not None:
        raise service.fleet.error


def _settle(on_loaded: OnLoaded | None, names: Seq[str]) -> None:
    """Note that what was loaded stays, and tell whoever wants to know its names."""
    heap.settle()
    if on_loaded is not None:
        on_loaded(names)


class Server(uvicorn.Server):
    """Uvicorn, with a drain before its shutdown."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self._is_told_to_end = False
        self._exit: threading.Timer | None = None
        self._deadline_s = 0.0  # of the drain, by the event loop's clock
        self._acceptor: Acceptor | None = None
        settings = service.settings
        self._supervisor = Supervisor(service, Notifier(os.environ))
        self._scraper = Scraper(service)
        self._health = self._opened_health(settings)
        self._reserve = ReserveDescriptor()  # before models open files
        quota = service.resource_limits.connections
        quota.limit = raise_file_limit(settings.max_connections)
        connection = type("Connection", (Connection,), {"settings": settings, "quota": quota})
        super().__init__(
            uvicorn.Config(
                create_app(service, scraper=self._scraper),
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
        """Open the port of health, if there is to be one."""
        place = health_listener(settings)
        if place is None:
            return None
        numbers = self._numbers if settings.health_metrics else None
        return HealthListener(place, self._supervisor.live, self._supervisor.ready, numbers)

    def _numbers(self, accept: str) -> "Future[Page]":
        """Have the page of numbers made in the event loop; called in any thread."""
        page = self._scraper.page(accept)
        try:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(page, self._loop)
        except RuntimeError:  # it has ended
            log.debug("numbers were asked for too late")
        page.close()
        none: Future[Page] = Future()
        none.set_exception(Unavailable("the server is shutting down", code="server_draining"))
        return none

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        self._loop = asyncio.get_running_loop()
        _on_hangup(self._reload)
        if self._health is not None:
            self._health.start()
            log.info("health at http://%s", shown(self._health.listener))
        await super().startup([])
        self._acceptor = Acceptor(
            self._connection,
            self._service.resource_limits.connections,
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

    def _connection(self) -> Connection:
        """Make what speaks over one connection."""
        made = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return cast(Connection, made)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, and then the connections; those that are open at the deadline at once."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        self._supervisor.end()
        closing = asyncio.get_running_loop().call_at(self._deadline_s, self._abort_connections)
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    def _abort_connections(self) -> None:
        """Close what is open: readers that take nothing, and what they were to get."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Look how things are; is called several times a second."""
        self._supervisor.look()
        return await super().on_tick(counter)

    def close(self) -> None:
        """Close the port of health, the last of all, and a file that was kept."""
        self._reserve.close()
        if self._health is not None:
            self._health.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal; end the process at the second."""
        if self._is_told_to_end or self._loop is None:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._is_told_to_end = self._service.is_draining = True
        wait_s = self._service.settings.drain_timeout_s + EXIT_S
        self._exit = threading.Timer(wait_s, self._force_exit)
        self._exit.daemon = True
        self._exit.start()
        self.stop()

    def forget_exit(self) -> None:
        """Let the process go on: the server has ended."""
        if self._exit is not None:
            self._exit.cancel()

    def _force_exit(self) -> None:
        """End the process although something hangs; subprocesses end with it."""
        names = sorted(thread.name for thread in threading.enumerate() if thread is not self._exit)
        log.critical("shutdown hangs after the drain deadline: exit; threads: %s", ", ".join(names))
        logging.shutdown()
        os._exit(1)

    def stop(self) -> None:
        """Start to drain and then stop; may be called from any thread."""
        if self._loop is None:
            self.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._start_drain)

    def _reload(self) -> None:
        """Read keys and certificates again, for whoever comes from now on; open logs again."""
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
            await self._service.drain(timeout_s, last_words_s=min(LAST_WORDS_S, timeout_s / 5))
        finally:
            self.should_exit = True


def _on_hangup(reload: Callable[[], None]) -> None:
    """Let SIGHUP reload, where there is such a signal and it is ours to take."""
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
