"""Read-only routes that clients of llama.cpp and vLLM use: load, properties, slots and tokenizer.

They show no prompt, no answer and no path of the machine, and change nothing.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Controller, Request, route
from litestar.di import NamedDependency

from vlmkit._version import __version__
from vlmkit.interfaces.runner import Runner
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import ModelNotFound, Unavailable
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation


class Load(msgspec.Struct):
    """Requests in progress: of all clients for operators, otherwise the caller's own."""

    server_load: int


class ModelQuery(msgspec.Struct):
    """The model; may be left out where one is served."""

    model: str | None = None


class GenerationSettings(msgspec.Struct):
    """The context of one slot, and the default sampling parameters."""

    n_ctx: int
    params: dict[str, Any]


class Modalities(msgspec.Struct):
    """The media types that a message may contain."""

    vision: bool
    audio: bool


class Props(msgspec.Struct):
    """A model's properties, by llama.cpp's names."""

    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    modalities: Modalities
    build_info: str


class Slot(msgspec.Struct):
    """A sequence slot of the batch, by llama.cpp's names."""

    id: int
    n_ctx: int
    is_processing: bool


class TokenizerInfo(msgspec.Struct):
    """The facts of a tokenizer, by vLLM's names; ``eos_tokens`` is an addition.

    ``chat_template`` is never shown, since operators may keep it private.
    """

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    eos_token: str | None
    eos_tokens: list[str]
    bos_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None


class InspectionController(Controller):
    """Read-only routes of other servers."""

    @route("/load", http_method=READ, operation=Operation(Load, access="key"))
    async def load(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> Load:
        """Return the number of requests in progress."""
        caller = caller_of(request)
        quota = service.admission.limits.requests
        return Load(quota.num_held if caller.is_operator else quota.held_by(caller.account))

    @route("/props", http_method=READ, operation=Operation(Props, query=ModelQuery, access="admin"))
    async def props(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> Props:
        """Return a model's properties."""
        name, runner = _named(request, service)
        limits, facts = runner.facts.limits, runner.facts
        return Props(
            GenerationSettings(limits.max_sequence_tokens, _params(facts.defaults)),
            limits.max_sequences,
            name,
            Modalities(facts.takes_images, audio=False),
            f"vlmkit {__version__}",
        )

    @route(
        "/slots",
        http_method=READ,
        operation=Operation(list[Slot], query=ModelQuery, access="admin"),
    )
    async def slots(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> list[Slot]:
        """Return the sequence slots; those in use come first."""
        _, runner = _named(request, service)
        return list(_slots(runner))

    @route(
        "/tokenizer_info",
        http_method=READ,
        operation=Operation(TokenizerInfo, query=ModelQuery, access="key"),
    )
    async def tokenizer(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> TokenizerInfo:
        """Return the facts of a model's tokenizer."""
        _, runner = _named(request, service)
        limits = runner.facts.limits
        ends = [
            runner.token_bytes(token_id).decode(errors="replace")
            for token_id in sorted(runner.facts.eos_ids)
        ]
        ends = [text for text in ends if text]
        return TokenizerInfo(
            "vlmkit",
            limits.max_sequence_tokens,
            limits.vocab_size,
            ends[0] if ends else None,
            ends,
        )


def _named(request: Request[Any, Any, Any], service: Service) -> tuple[str, Runner]:
    """Return a model's name and its runner, if it is in memory.

    Raises:
        RequestError: several models are served, and none is named.
        ModelNotFound: no model has this name.
        Unavailable: it is not in memory.
    """
    name = service.name(request.query_params.get("model"))
    if name not in service.models:
        raise ModelNotFound(
            "the model is not served here (GET /v1/models lists them)", param="model"
        )
    runner = service.models[name].runner
    if runner is None:
        raise Unavailable("the model is not in memory now", code="model_unloaded")
    return name, runner


def _params(defaults: SamplingParams) -> dict[str, Any]:
    """Return the default sampling parameters, by llama.cpp's names."""
    return {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
        "presence_penalty": defaults.presence_penalty,
        "frequency_penalty": defaults.frequency_penalty,
        "n_predict": -1 if defaults.max_tokens is None else defaults.max_tokens,
    }


def _slots(runner: Runner) -> Iterator[Slot]:
    limits, num_running = runner.facts.limits, runner.stats().num_running
    for number in range(limits.max_sequences):
        yield Slot(number, limits.max_sequence_tokens, number < num_running)
