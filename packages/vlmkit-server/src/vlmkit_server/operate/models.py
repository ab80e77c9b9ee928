"""``GET /v1/models`` and ``GET /v1/models/{id}``: the served models, loaded or not.

Anthropic's clients get its shape.
"""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, route
from litestar.di import NamedDependency
from litestar.params import FromPath

from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_handle import ModelHandle, State
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.http.message_errors import error_for_client, is_anthropics
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation


class ModelBody(msgspec.Struct):
    """One model under one of its names, in OpenAI's shape; fields from ``root`` on are additions.

    ``root`` is the model's own name.
    """

    id: str
    created: int
    root: str
    state: State
    modalities: list[str] | None
    max_model_len: int | None
    object: Literal["model"] = "model"
    owned_by: str = "vlmkit"


class ModelList(msgspec.Struct):
    """Every model."""

    data: list[ModelBody]
    object: Literal["list"] = "list"


class ModelMetadata(msgspec.Struct):
    """One model under one of its names, in Anthropic's shape."""

    id: str
    created_at: datetime
    display_name: str
    max_input_tokens: int | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelMetadataPage(msgspec.Struct):
    """Every model on one page."""

    data: list[ModelMetadata]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


class ModelsController(Controller):
    """The served models."""

    path = "/v1/models"
    exception_handlers = error_handlers(error_for_client)

    @route(http_method=READ, operation=Operation(ModelList, access="key"))
    async def list_all(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ModelList | ModelMetadataPage:
        """List every name of every model, whether or not it is in memory."""
        models = service.models.values()
        bodies = [model_body(model, name) for model in models for name in model.names]
        if not is_anthropics(request.headers):
            return ModelList(bodies)
        data = list(map(_metadata, bodies))
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return ModelMetadataPage(data, first, last)

    @route("/{name:path}", http_method=READ, operation=Operation(ModelBody, access="key"))
    async def retrieve(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        name: FromPath[str],
    ) -> ModelBody | ModelMetadata:
        """Describe one model; names may contain slashes."""
        name = name.removeprefix("/")
        body = model_body(service.registry.find(name), name)
        return _metadata(body) if is_anthropics(request.headers) else body


def model_body(model: ModelHandle, name: str) -> ModelBody:
    """Describe a model under one of its names."""
    if (facts := model.facts) is None:
        return ModelBody(name, model.created, model.name, model.state, None, None)
    return ModelBody(
        name,
        model.created,
        model.name,
        model.state,
        list(facts.modalities),
        facts.limits.max_sequence_tokens,
    )


def _metadata(body: ModelBody) -> ModelMetadata:
    created = datetime.fromtimestamp(body.created, UTC)
    return ModelMetadata(body.id, created, body.id, body.max_model_len)
