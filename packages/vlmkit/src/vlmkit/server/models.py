"""``GET /v1/models`` and ``GET /v1/models/{id}``: what is served, loaded or not."""

import hashlib
from typing import Literal

import msgspec
from litestar import Controller, route
from litestar.di import NamedDependency
from litestar.params import FromPath

from vlmkit._version import __version__
from vlmkit.seams.runner import RunnerFacts
from vlmkit.server.methods import READ
from vlmkit.server.operation import Operation
from vlmkit.server.service import ServedModel, Service, State


class ModelBody(msgspec.Struct):
    """One model in OpenAI's shape; from ``state`` on, the fields are ours."""

    id: str
    created: int
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
    """What is served."""

    path = "/v1/models"

    @route(http_method=READ, operation=Operation(ModelList))
    async def list_all(self, service: NamedDependency[Service]) -> ModelList:
        """List every model, those that are still loading included."""
        return ModelList([_body(model) for model in service.models.values()])

    @route("/{name:path}", http_method=READ, operation=Operation(ModelBody))
    async def retrieve(self, service: NamedDependency[Service], name: FromPath[str]) -> ModelBody:
        """Describe one model; names may hold slashes."""
        return _body(service.model(name.removeprefix("/")))


def fingerprint(facts: RunnerFacts) -> str:
    """Return a short digest that changes with the version, the model's name or its limits."""
    subject = f"{__version__} {facts.name} {facts.limits}"
    return f"fp_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"


def _body(model: ServedModel) -> ModelBody:
    if model.runner is None:
        return ModelBody(model.name, model.created, model.state, None, None)
    facts = model.runner.facts
    return ModelBody(
        model.name,
        model.created,
        model.state,
        list(facts.modalities),
        facts.limits.max_sequence_tokens,
    )
