"""``GET /v1/models`` and ``GET /v1/models/{id}``: the served models, loaded or not."""

from typing import Literal

import msgspec
from litestar import Controller, route
from litestar.di import NamedDependency
from litestar.params import FromPath

from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_handle import ModelHandle, State
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


class ModelsController(Controller):
    """The served models."""

    path = "/v1/models"

    @route(http_method=READ, operation=Operation(ModelList, access="key"))
    async def list_all(self, service: NamedDependency[Service]) -> ModelList:
        """List every name of every model, whether or not it is in memory."""
        models = service.models.values()
        return ModelList([model_body(model, name) for model in models for name in model.names])

    @route("/{name:path}", http_method=READ, operation=Operation(ModelBody, access="key"))
    async def retrieve(self, service: NamedDependency[Service], name: FromPath[str]) -> ModelBody:
        """Describe one model; names may contain slashes."""
        name = name.removeprefix("/")
        return model_body(service.registry.find(name), name)


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
