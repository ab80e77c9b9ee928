"""The application: routes, errors and bounds, tied to the models that are served."""

from collections.abc import Mapping

from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException

from vlmkit.pipeline import Pipeline
from vlmkit.server.chat import ChatController
from vlmkit.server.convert import Converter
from vlmkit.server.errors import (
    ClientGone,
    respond_to_error,
    respond_to_gone,
    respond_to_http_error,
)
from vlmkit.server.fetch import ImageFetcher
from vlmkit.server.gate import Gate
from vlmkit.server.health import HealthController
from vlmkit.server.models import ModelsController
from vlmkit.server.service import Service
from vlmkit.server.settings import ServerSettings


def create_app(
    models: Service | Mapping[str, Pipeline], settings: ServerSettings | None = None
) -> Litestar:
    """Return the ASGI application that serves some models.

    Deadlines for headers and for readers that take nothing belong to the connection, which is the
    ASGI server's: :func:`vlmkit.server.run.serve` sets them.

    Args:
        models: pipelines by the name they are served under, or a service whose models may still be
            loading.
        settings: bounds; the defaults when None. A service brings its own.
    """
    service = models if isinstance(models, Service) else _service(models, settings)
    fetch = service.settings.fetch
    converter = Converter(service.settings, ImageFetcher(fetch) if fetch.enabled else None)
    app = Litestar(
        [ChatController, ModelsController, HealthController],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False, use_cache=True),
            "converter": Provide(lambda: converter, sync_to_thread=False, use_cache=True),
        },
        exception_handlers={
            Exception: respond_to_error,
            HTTPException: respond_to_http_error,
            ClientGone: respond_to_gone,
        },
        request_max_body_size=service.settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    app.asgi_handler = Gate(app.asgi_handler, service)
    return app


def _service(models: Mapping[str, Pipeline], settings: ServerSettings | None) -> Service:
    service = Service(models, settings or ServerSettings())
    for name, pipeline in models.items():
        service.models[name].start()
        service.models[name].finish(pipeline)
    return service
