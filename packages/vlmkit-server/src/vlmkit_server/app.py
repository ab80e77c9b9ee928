"""Builds the ASGI application: routes, middleware and error handlers around a service."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from litestar import Litestar
from litestar.di import NamedDependency, Provide
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit_server.apis.anthropic_messages.route import MessagesController
from vlmkit_server.apis.batches.batches import Batches
from vlmkit_server.apis.batches.message_batches_route import MessageBatchesController
from vlmkit_server.apis.batches.route import BatchesController
from vlmkit_server.apis.files.disk_store import FilesOnDisk
from vlmkit_server.apis.files.memory_store import FileStore
from vlmkit_server.apis.files.route import FilesController
from vlmkit_server.apis.files.storage import FilesInMemory, FileStorage
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.route import ChatController
from vlmkit_server.apis.openai_completions.route import CompletionsController
from vlmkit_server.apis.openai_embeddings.route import EmbeddingsController
from vlmkit_server.apis.openai_responses.route import ResponsesController
from vlmkit_server.apis.openai_responses.store import ResponseStore
from vlmkit_server.apis.tokens.generate import GenerateController
from vlmkit_server.apis.tokens.invocations import InvocationsController
from vlmkit_server.apis.tokens.render import RenderController
from vlmkit_server.apis.tokens.tokenize import TokensController
from vlmkit_server.auth.guard import Guard
from vlmkit_server.exchange.background import BackgroundWork
from vlmkit_server.exchange.gate import Gate
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Servable
from vlmkit_server.http.cors import Cors
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.logs.request_log import RequestLog
from vlmkit_server.operate.capabilities import CapabilitiesController
from vlmkit_server.operate.docs import DocsController, docs_page
from vlmkit_server.operate.health import HealthController
from vlmkit_server.operate.home import HomeController
from vlmkit_server.operate.inspection import InspectionController
from vlmkit_server.operate.management import ManagementController
from vlmkit_server.operate.metrics import MetricsController, Scraper
from vlmkit_server.operate.models import ModelsController
from vlmkit_server.operate.openapi import OpenApiController, openapi_document
from vlmkit_server.rate_limits.guard import RateLimitGuard
from vlmkit_server.rate_limits.headers import EXPOSED
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.storage.data_folder import Folder, files_of


def create_app(
    models: Service | Mapping[str, ModelSpec | Servable | Loader],
    settings: ServerSettings | None = None,
    *,
    scraper: Scraper | None = None,
) -> Litestar:
    """Return the ASGI application that serves some models.

    The ASGI server sets the deadlines for headers and for clients that read nothing:
    :func:`vlmkit_server.run.serve` does so.

    Args:
        models: the models by served name, or a service. Models with a loader are loaded when the
            application starts; the owner of the service closes them.
        settings: the server's settings; the defaults when None. A service brings its own.
        scraper: writes the metrics page, if other code needs it, too; it is closed at shutdown.
    """
    if isinstance(models, Service):
        service = models
    else:
        service = Service(models, settings or ServerSettings())
    data = service.settings.data
    on_disk = FilesOnDisk(Folder(data, files_of(service.settings))) if data.folder else None
    files: FileStorage = on_disk or FilesInMemory(FileStore(service.settings.files))
    fetcher = ImageFetcher(service.fetch) if service.fetch.enabled else None
    converter = Converter(service.settings, fetcher, files, service.offload)
    scraper = scraper or Scraper(service)
    responses, detached = ResponseStore(service.settings.responses), BackgroundWork(service)

    def describe() -> bytes:
        return openapi_document(app, service.request_fields)

    def show(document: NamedDependency[bytes]) -> bytes:
        return docs_page(document)

    app = Litestar(
        [
            *([ManagementController] if service.settings.fleet.manage else []),
            *([MetricsController] if service.monitors else []),
            BatchesController,
            ChatController,
            CompletionsController,
            DocsController,
            EmbeddingsController,
            FilesController,
            MessageBatchesController,
            MessagesController,
            RenderController,
            ResponsesController,
            TokensController,
            ModelsController,
            CapabilitiesController,
            HealthController,
            HomeController,
            InspectionController,
            InvocationsController,
            OpenApiController,
            *([GenerateController] if service.settings.takes_generate else []),
        ],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False, use_cache=True),
            "batches": Provide(lambda: batches, sync_to_thread=False, use_cache=True),
            "converter": Provide(lambda: converter, sync_to_thread=False, use_cache=True),
            "files": Provide(lambda: files, sync_to_thread=False, use_cache=True),
            "responses": Provide(lambda: responses, sync_to_thread=False, use_cache=True),
            "scraper": Provide(lambda: scraper, sync_to_thread=False, use_cache=True),
            "detached": Provide(lambda: detached, sync_to_thread=False, use_cache=True),
            "document": Provide(describe, sync_to_thread=True, use_cache=True),
            "docs": Provide(show, sync_to_thread=True, use_cache=True),
        },
        guards=[
            *([Guard(service.keys)] if service.keys else []),
            RateLimitGuard(service.tenant_usages),
        ],
        on_startup=[service.fleet.start, service.tenant_usages.start, service.monitors.start],
        on_shutdown=[
            service.toolbox.aclose,
            service.tenant_usages.close,
            service.offload.close,
            service.monitors.stop,
            scraper.close,
        ],
        exception_handlers=error_handlers(),
        request_max_body_size=service.settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    inner = app.asgi_handler
    if allowed := service.settings.allowed_origins:
        inner = Cors(inner, allowed, EXPOSED)
    inner = Gate(inner, service)
    if service.access_log is not None or service.audit.is_on:
        inner = RequestLog(inner, service.access_log, service.audit)
    app.asgi_handler = Aliases(inner)
    batches = None
    if on_disk is not None:
        on_disk.restore()
        batches = Batches(on_disk, service, app)
        app.on_startup.append(batches.start)
        app.on_shutdown.insert(0, batches.stop)
    return app


ALIASES: Mapping[str, str] = MappingProxyType(
    {"/apply-template": "/v1/chat/completions/render"}
    | {
        path.removeprefix("/v1"): path
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/models",
            "/v1/responses",
        )
    }
)


class Aliases:
    """Replaces alternative paths by those of their routes.

    Args:
        app: the application that has the routes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the route's own path."""
        if scope["type"] == ScopeType.HTTP and (path := ALIASES.get(scope["path"])) is not None:
            scope = cast(Scope, {**scope, "path": path, "raw_path": path.encode()})
        await self._app(scope, receive, send)
