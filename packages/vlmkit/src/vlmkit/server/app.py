"""The application: routes, errors and bounds, tied to the models that are served."""

from collections.abc import Mapping

from litestar import Litestar
from litestar.di import Provide

from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.server.capabilities import CapabilitiesController
from vlmkit.server.chat import ChatController
from vlmkit.server.completions import CompletionsController
from vlmkit.server.convert import Converter
from vlmkit.server.detached import Detached
from vlmkit.server.embeddings import EmbeddingsController
from vlmkit.server.errors import error_handlers
from vlmkit.server.gate import Gate
from vlmkit.server.generate import GenerateController
from vlmkit.server.health import HealthController
from vlmkit.server.messages import MessagesController
from vlmkit.server.models import ModelsController
from vlmkit.server.openapi import OpenApiController, openapi_document
from vlmkit.server.origins import Origins
from vlmkit.server.render import RenderController
from vlmkit.server.response_store import ResponseStore
from vlmkit.server.responses import ResponsesController
from vlmkit.server.service import Served, Service, runner_of
from vlmkit.server.tokens import TokensController
from vlmkit.settings.server import ServerSettings


def create_app(
    models: Service | Mapping[str, Served], settings: ServerSettings | None = None
) -> Litestar:
    """Return the ASGI application that serves some models.

    Deadlines for headers and for readers that take nothing belong to the connection, which is the
    ASGI server's: :func:`vlmkit.server.run.serve` sets them.

    Args:
        models: runners or models by the name they are served under, or a service whose models may
            still be loading.
        settings: bounds; the defaults when None. A service brings its own.
    """
    service = models if isinstance(models, Service) else _service(models, settings)
    fetch = service.settings.fetch
    converter = Converter(service.settings, ImageFetcher(fetch) if fetch.enabled else None)
    responses, detached = ResponseStore(service.settings.responses), Detached(service)
    app = Litestar(
        [
            ChatController,
            CompletionsController,
            EmbeddingsController,
            MessagesController,
            RenderController,
            ResponsesController,
            TokensController,
            ModelsController,
            CapabilitiesController,
            HealthController,
            OpenApiController,
            *([GenerateController] if service.settings.allow_generate else []),
        ],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False, use_cache=True),
            "converter": Provide(lambda: converter, sync_to_thread=False, use_cache=True),
            "responses": Provide(lambda: responses, sync_to_thread=False, use_cache=True),
            "detached": Provide(lambda: detached, sync_to_thread=False, use_cache=True),
            "document": Provide(lambda: openapi_document(app), sync_to_thread=True, use_cache=True),
        },
        on_shutdown=[service.toolbox.aclose],
        exception_handlers=error_handlers(),
        request_max_body_size=service.settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    inner = app.asgi_handler
    if allowed := service.settings.allowed_origins:
        inner = Origins(inner, allowed)
    app.asgi_handler = Gate(inner, service)
    return app


def _service(models: Mapping[str, Served], settings: ServerSettings | None) -> Service:
    service = Service(models, settings or ServerSettings())
    for name, served in models.items():
        service.models[name].start()
        service.models[name].finish(runner_of(served))
    return service
