"""Builds the ASGI application: routes, middleware and error handlers around a service."""

from collections.abc import Mapping
from typing import Any

from litestar import Litestar
from litestar.di import NamedDependency, Provide
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit_server.admission.guard import RateLimitGuard
from vlmkit_server.apis.builtin import APIS
from vlmkit_server.auth.guard import Guard
from vlmkit_server.conversation.host import Host
from vlmkit_server.conversation.mounting import mounted
from vlmkit_server.conversation.request_builder import RequestBuilder
from vlmkit_server.exchange.gate import Gate
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Servable
from vlmkit_server.http.cors import Cors
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.interfaces.api import Api
from vlmkit_server.logs.request_log import RequestLog
from vlmkit_server.operate.capabilities import CapabilitiesController
from vlmkit_server.operate.docs import DocsController, docs_page
from vlmkit_server.operate.health import HealthController
from vlmkit_server.operate.home import HomeController
from vlmkit_server.operate.inspection import InspectionController
from vlmkit_server.operate.management import ManagementApi
from vlmkit_server.operate.metrics import MetricsController, Scraper
from vlmkit_server.operate.models import ModelsController
from vlmkit_server.operate.openapi import OpenApiController, openapi_document
from vlmkit_server.rate_limits.headers import EXPOSED
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.storage.data_folder import Folder, files_of
from vlmkit_server.storage.disk_store import FilesOnDisk
from vlmkit_server.storage.file_storage import FilesInMemory, FileStorage
from vlmkit_server.storage.memory_store import FileStore


def create_app(
    models: Service | Mapping[str, ModelSpec | Servable | Loader],
    settings: ServerSettings | None = None,
    *,
    scraper: Scraper | None = None,
    apis: Mapping[str, Api] = APIS,
    component_names: ComponentNames = UNKNOWN,
) -> Litestar:
    """Return the ASGI application that serves some models.

    The ASGI server sets the deadlines for headers and for clients that read nothing:
    :func:`vlmkit_server.run.serve` does so.

    Args:
        models: the models by served name, or a service. Models with a loader are loaded when the
            application starts; the owner of the service closes them.
        settings: the server's settings; the defaults when None. A service brings its own.
        scraper: writes the metrics page, if other code needs it, too; it is closed at shutdown.
        apis: the APIs, each by its name.
        component_names: names the providers of APIs in errors.

    Raises:
        PluginError: two APIs have the same route, or a route has no scope.
    """
    if isinstance(models, Service):
        service = models
    else:
        service = Service(models, settings or ServerSettings())
    late = LateApp()
    host = _host(service, late)
    scraper = scraper or Scraper(service)
    found = mounted({**apis, **_management(service)}, host, component_names)

    def describe() -> bytes:
        return openapi_document(app, service.request_fields)

    def show(document: NamedDependency[bytes]) -> bytes:
        return docs_page(document)

    objects = {
        "apis": found,
        "host": host,
        "scraper": scraper,
        "service": service,
        **host.dependencies,
    }
    app = Litestar(
        [
            *found.handlers,
            *([MetricsController] if service.monitors else []),
            CapabilitiesController,
            DocsController,
            HealthController,
            *([] if found.has_start_page else [HomeController]),
            InspectionController,
            ModelsController,
            OpenApiController,
        ],
        dependencies={
            **{name: _provided(value) for name, value in objects.items()},
            "document": Provide(describe, sync_to_thread=True, use_cache=True),
            "docs": Provide(show, sync_to_thread=True, use_cache=True),
        },
        guards=[
            *([Guard(service.keys)] if service.keys else []),
            RateLimitGuard(service.admission.usages),
        ],
        on_startup=[
            service.fleet.start,
            service.admission.usages.start,
            service.monitors.start,
            *host.on_startup,
        ],
        on_shutdown=[
            *host.on_shutdown,
            service.toolbox.aclose,
            service.admission.usages.close,
            service.offload.close,
            service.monitors.stop,
            scraper.close,
        ],
        exception_handlers=error_handlers(found.write_error),
        request_max_body_size=service.settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    late.app, app.state.apis = app, found
    inner = app.asgi_handler
    if allowed := service.settings.allowed_origins:
        inner = Cors(inner, allowed, EXPOSED)
    inner = Gate(inner, service, found.write_error)
    if service.access_log is not None or service.audit.is_on:
        inner = RequestLog(inner, service.access_log, service.audit)
    app.asgi_handler = inner
    return app


def check_apis(apis: Mapping[str, Api], component_names: ComponentNames) -> None:
    """Check that APIs can be served together, without a server.

    Raises:
        PluginError: an API raises an error or has an invalid route, or two APIs have the same one.
    """
    service = Service({}, ServerSettings())
    try:
        mounted(apis, _host(service, LateApp()), component_names)
    finally:
        service.fleet.close()


class LateApp:
    """An application that is set after the objects that call it are built."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application."""
        await self.app(scope, receive, send)


def _host(service: Service, app: ASGIApp) -> Host:
    """Return the parts of a server that its APIs may use."""
    data = service.settings.data
    files: FileStorage
    if data.folder:
        files = FilesOnDisk(Folder(data, files_of(service.settings)))
        files.restore()
    else:
        files = FilesInMemory(FileStore(service.settings.files))
    fetcher = ImageFetcher(service.fetch) if service.fetch.enabled else None
    builder = RequestBuilder(service.settings, fetcher, files, service.offload)
    return Host(service, builder, files, app)


def _management(service: Service) -> dict[str, Api]:
    return {"management": ManagementApi()} if service.settings.fleet.manage else {}


def _provided(value: Any) -> Provide:
    """Return a dependency of route handlers that is the same object for every request."""
    return Provide(lambda: value, sync_to_thread=False, use_cache=True)
