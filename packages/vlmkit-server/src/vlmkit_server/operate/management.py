"""``POST /v1/models/load`` and ``/unload``: load and unload configured models by name.

The routes exist only if the operator enables them. A client that does not want to wait sends
``wait: false`` and polls ``state`` of ``GET /v1/models/{id}``. A disconnect while waiting stops
nothing.
"""

import msgspec
from litestar.types import ASGIApp

from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.http.errors import OpenAiErrors
from vlmkit_server.interfaces.api import Route
from vlmkit_server.operate.models import ModelBody, model_body
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import ModelName


class NamedModel(msgspec.Struct, kw_only=True):
    """The body of both routes: the model, and whether to wait for the outcome."""

    model: ModelName | None = None
    wait: bool = True


class Managed(ModelBody, kw_only=True):
    """The state of the model; ``success`` is a field of llama.cpp's server."""

    success: bool = True


NAMED = BodyReader(NamedModel, about=frozenset())


class ManagementApi(OpenAiErrors):
    """Loading and unloading of models."""

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes, each under two paths."""
        return [
            Route(
                path=f"{prefix}/models/{handler.__name__}",
                scope="admin",
                handler=handler,
                reader=NAMED,
                answer=Managed,
                answers="",
            )
            for handler in (load, unload)
            for prefix in ("/v1", "")
        ]


async def load(exchange: Exchange, body: NamedModel) -> ASGIApp:
    """Load a model."""
    control, model = exchange.service.fleet.control, _model(exchange, body)
    if body.wait:
        await control.load(model)
    else:
        control.start_loading(model)
    return _state(exchange, body)


async def unload(exchange: Exchange, body: NamedModel) -> ASGIApp:
    """Unload a model after its answers have ended."""
    control, model = exchange.service.fleet.control, _model(exchange, body)
    if body.wait:
        await control.unload(model)
    else:
        control.start_unloading(model)
    return _state(exchange, body)


def _model(exchange: Exchange, body: NamedModel) -> ModelHandle:
    """Return the model of a body.

    Raises:
        RequestError: it does not exist, or several are served and none is named.
    """
    return exchange.service.registry.find(exchange.service.name(body.model))


def _state(exchange: Exchange, body: NamedModel) -> ASGIApp:
    """Return the response with the state of a model."""
    found = model_body(_model(exchange, body), exchange.service.name(body.model))
    return exchange.json(Managed(**msgspec.structs.asdict(found)))
