"""``POST /v1/models/load`` and ``/unload``: models that the operator named, by their names.

Only there where the operator lets clients do this. Whoever is not patient sends ``wait: false`` and
reads ``state`` of ``GET /v1/models/{id}``; who goes away while waiting stops nothing.
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
    """The body of both: which model, and whether the answer waits until it is done."""

    model: ModelName | None = None
    wait: bool = True


class Managed(ModelBody, kw_only=True):
    """The model as it is now; ``success`` is what llama.cpp's server says."""

    success: bool = True


NAMED = BodyReader(NamedModel, about=frozenset())
OPERATION = Operation(Managed, NamedModel, access="admin")


class ManagementController(Controller):
    """What is in memory."""

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
        """Unload a model when its answers have ended."""
        return _UnloadCall(request, service, NAMED)


class _ManagementCall(Call[NamedModel]):
    """Answers with what became of a model."""

    def answer(self, name: str) -> ASGIApp:
        """Return the model as it is now."""
        body = model_body(self.service.registry.find(name), name)
        content = msgspec.json.encode(Managed(**msgspec.structs.asdict(body)))
        return ASGIResponse(body=content, headers=self.headers)


class _LoadCall(_ManagementCall):
    """Loads a model."""

    async def start(self, body: NamedModel) -> ASGIApp:
        """Load it, or only begin to."""
        name = self.service.name(body.model)
        model = self.service.registry.find(name)
        if body.wait:
            await self.service.fleet.load(model)
        else:
            self.service.fleet.start_loading(model)
        return self.answer(name)


class _UnloadCall(_ManagementCall):
    """Unloads a model."""

    async def start(self, body: NamedModel) -> ASGIApp:
        """Unload it, or only begin to."""
        name = self.service.name(body.model)
        model = self.service.registry.find(name)
        if body.wait:
            await self.service.fleet.unload(model)
        else:
            self.service.fleet.start_unloading(model)
        return self.answer(name)
