"""``POST /v1/models/load`` and ``/unload``: load and unload configured models by name.

The routes exist only if the operator enables them. A client that does not want to wait sends
``wait: false`` and polls ``state`` of ``GET /v1/models/{id}``. A disconnect while waiting stops
nothing.
"""

from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit_server.apis.openai_chat.call import Call
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.operation import Operation
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
OPERATION = Operation(Managed, NamedModel, access="admin")


class ManagementController(Controller):
    """Loading and unloading of models."""

    @post(["/v1/models/load", "/models/load"], status_code=200, operation=OPERATION)
    async def load(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ASGIApp:
        """Load a model."""
        return _LoadCall(request, service, NAMED)

    @post(["/v1/models/unload", "/models/unload"], status_code=200, operation=OPERATION)
    async def unload(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ASGIApp:
        """Unload a model after its answers have ended."""
        return _UnloadCall(request, service, NAMED)


class _ManagementCall(Call[NamedModel]):
    """A call whose response is the state of a model."""

    def answer(self, name: str) -> ASGIApp:
        """Return the response with the model's state."""
        body = model_body(self.service.registry.find(name), name)
        content = msgspec.json.encode(Managed(**msgspec.structs.asdict(body)))
        return ASGIResponse(body=content, headers=self.headers)


class _LoadCall(_ManagementCall):
    """Loads a model."""

    async def start(self, body: NamedModel) -> ASGIApp:
        """Load the model, or start to."""
        name = self.service.name(body.model)
        model = self.service.registry.find(name)
        if body.wait:
            await self.service.fleet.control.load(model)
        else:
            self.service.fleet.control.start_loading(model)
        return self.answer(name)


class _UnloadCall(_ManagementCall):
    """Unloads a model."""

    async def start(self, body: NamedModel) -> ASGIApp:
        """Unload the model, or start to."""
        name = self.service.name(body.model)
        model = self.service.registry.find(name)
        if body.wait:
            await self.service.fleet.control.unload(model)
        else:
            self.service.fleet.control.start_unloading(model)
        return self.answer(name)
