"""``/api/tags``, ``/api/show``, ``/api/ps`` and ``/api/version``: the served models."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit_ollama.wire import ShowRequest
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.http.errors import ModelNotFound
from vlmkit_server.interfaces.model_info import ModelInfo

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this follows; clients compare it with what they need."""

_TAG = ":latest"  # what a name without a tag means
_FAMILY = "vlmkit"
_NEVER = datetime(9999, 12, 31, tzinfo=UTC)


class ModelDetails(msgspec.Struct):
    """What a model is; texts are empty where it is unknown."""

    parent_model: str
    quantization_level: str
    family: str = _FAMILY
    families: tuple[str, ...] = (_FAMILY,)
    format: str = ""
    parameter_size: str = ""


class ListedModel(msgspec.Struct):
    """One model under one of its names; its size is 0 while it is unknown.

    Its digest is that of its own name: Ollama's command shows a part, and needs one.
    """

    name: str
    model: str
    modified_at: datetime
    size: int
    details: ModelDetails
    digest: str


class LoadedModel(ListedModel, kw_only=True):
    """One model in memory; the operator decides when it is unloaded, so no time is set."""

    expires_at: datetime = _NEVER
    size_vram: int = 0
    context_length: int


class TagList(msgspec.Struct):
    """The answer of ``/api/tags``."""

    models: list[ListedModel]


class LoadedModels(msgspec.Struct):
    """The answer of ``/api/ps``."""

    models: list[LoadedModel]


class ShownModel(msgspec.Struct):
    """The answer of ``/api/show``; what only a loaded model tells is empty before that."""

    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    license: str = ""


class OllamaVersion(msgspec.Struct):
    """The answer of ``/api/version``."""

    version: str


def resolved_name(exchange: Exchange, name: str | None) -> str | None:
    """Return the name that a model is served under, without a tag that only Ollama's names have."""
    if name is None or not name.endswith(_TAG) or _found(exchange, name):
        return name
    return name.removesuffix(_TAG)


def _found(exchange: Exchange, name: str) -> ModelInfo | None:
    """Return the model with a name, if it is served."""
    return next((model for model in exchange.models if name in model.names), None)


async def list_models(exchange: Exchange, _body: None) -> ASGIApp:
    """List every name of every model, whether or not it is in memory."""
    models = [_listed(model, name) for model in exchange.models for name in model.names]
    return exchange.json(TagList(models))


async def list_loaded(exchange: Exchange, _body: None) -> ASGIApp:
    """List the models in memory."""
    models = [model for model in exchange.models if model.is_in_memory]
    return exchange.json(LoadedModels([_loaded(each) for each in models]))


async def show(exchange: Exchange, body: ShowRequest) -> ASGIApp:
    """Describe one model."""
    name = resolved_name(exchange, body.model or body.name)
    if not name:
        raise RequestError("model must be given", param="model")
    if (model := _found(exchange, name)) is None:
        raise ModelNotFound(
            "the model is not served here", param="model", hint="GET /api/tags lists them"
        )
    info, capabilities = _facts(model)
    shown = ShownModel(_details(model, name), info, capabilities, _created(model))
    return exchange.json(shown)


async def version(exchange: Exchange, _body: None) -> ASGIApp:
    """Return the version of Ollama whose API this server follows."""
    return exchange.json(OllamaVersion(OLLAMA_VERSION))


def _listed(model: ModelInfo, name: str) -> ListedModel:
    return ListedModel(
        name=name,
        model=name,
        modified_at=_created(model),
        size=model.memory_bytes or 0,
        details=_details(model, name),
        digest=_digest(model),
    )


def _loaded(model: ModelInfo) -> LoadedModel:
    limits = model.facts.limits if model.facts else None
    return LoadedModel(
        name=model.name,
        model=model.name,
        modified_at=_created(model),
        size=model.memory_bytes or 0,
        details=_details(model, model.name),
        digest=_digest(model),
        context_length=limits.max_sequence_tokens if limits else 0,
    )


def _details(model: ModelInfo, name: str) -> ModelDetails:
    precision = model.facts.limits.precision if model.facts else ""
    return ModelDetails(model.name if name != model.name else "", precision)


def _facts(model: ModelInfo) -> tuple[dict[str, Any], list[str]]:
    """Return the numbers and the capabilities of a model, by Ollama's names."""
    info: dict[str, Any] = {"general.architecture": _FAMILY, "general.basename": model.name}
    if (facts := model.facts) is None:
        return info, []
    info[f"{_FAMILY}.context_length"] = facts.limits.max_sequence_tokens
    capabilities = ["completion", "tools"]
    if facts.takes_images:
        capabilities.append("vision")
    if "reasoning_effort" in facts.options:
        capabilities.append("thinking")
    if facts.limits.hidden_size:
        info[f"{_FAMILY}.embedding_length"] = facts.limits.hidden_size
        capabilities.append("embedding")
    return info, capabilities


def _digest(model: ModelInfo) -> str:
    return hashlib.sha256(model.name.encode()).hexdigest()


def _created(model: ModelInfo) -> datetime:
    return datetime.fromtimestamp(model.created_s, UTC)
