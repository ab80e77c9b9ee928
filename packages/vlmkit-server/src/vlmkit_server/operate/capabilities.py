"""``GET /v1/capabilities``: what each model that is loaded here can be asked, and how much of it.

All of it is read off what runs: routes, the fields of their bodies, and the runners' facts.
"""

from collections.abc import Hashable, Mapping
from typing import Any, cast, get_args

import msgspec
from litestar import Controller, route
from litestar.di import NamedDependency

from vlmkit._version import __version__
from vlmkit.interfaces.runner import CONSTRAINT, RunnerFacts
from vlmkit.interfaces.tokenizer import Option
from vlmkit.settings.images import ImageLimits
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.anthropic_messages.wire import COUNT, MESSAGES
from vlmkit_server.apis.openai_chat.prompt_options import EFFORT
from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.apis.openai_completions.wire import COMPLETIONS
from vlmkit_server.apis.openai_embeddings.wire import EMBEDDINGS
from vlmkit_server.apis.openai_responses.wire import INPUT_TOKENS, RESPONSES
from vlmkit_server.apis.tokens.wire_generate import GENERATE
from vlmkit_server.apis.tokens.wire_render import (
    RENDER_CHAT,
    RENDER_COMPLETIONS,
    RENDER_MESSAGES,
    RENDER_RESPONSES,
)
from vlmkit_server.apis.tokens.wire_tokenize import DETOKENIZE, TOKENIZE
from vlmkit_server.exchange.service import KnownFields, Service
from vlmkit_server.fleet.model_handle import ModelHandle, State
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.operate.field_actions import actions, places_of, rejected_fields
from vlmkit_server.settings.server import FilesSettings
from vlmkit_server.wire.answer_forms import Formed
from vlmkit_server.wire.body import BodyReader

_Bodies = Mapping[str, BodyReader[Any]]

BODIES: dict[str, BodyReader[Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/chat/completions/render": RENDER_CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/completions/render": RENDER_COMPLETIONS,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT,
    "/v1/messages/render": RENDER_MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": INPUT_TOKENS,
    "/v1/responses/render": RENDER_RESPONSES,
    "/invocations": CHAT,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
_UNANSWERED = frozenset(
    path for path in BODIES if path.endswith(("/render", "/tokenize", "_tokens", "/detokenize"))
)
GENERATE_BODIES = {"/inference/v1/generate": GENERATE}


class Endpoint(msgspec.Struct):
    """What a body may hold, what is refused by name, and what is known to have no effect.

    ``aliases`` are other names of parameters, each with the parameter's.
    """

    parameters: list[str]
    refused: list[str]
    aliases: dict[str, str]
    without_effect: list[str]


class Limits(msgspec.Struct):
    """How much one request may have; null where the context alone bounds it."""

    max_model_len: int
    max_output_tokens: int | None
    max_concurrent_sequences: int
    max_images: int
    images: ImageLimits


class SamplerFacts(msgspec.Struct):
    """How tokens are chosen: what is not followed, and whether draws follow the softmax."""

    ignores: list[str]
    is_exact: bool


class ModelCapabilities(msgspec.Struct):
    """One model; all but its names and state is null before it was first loaded.

    ``request_fields`` are those that plugins added, each with its JSON schema. ``media_loaders``
    open the files that requests hold, such as ``image`` and ``pdf``. ``precision`` is the engine's
    and ``encoder_precision`` the media encoder's; each is null where its component does not say.
    ``embedding_size`` is null where there are no embeddings.
    """

    id: str
    aliases: tuple[str, ...]
    state: State
    modalities: tuple[str, ...] | None = None
    media_loaders: tuple[str, ...] | None = None
    precision: str | None = None
    encoder_precision: str | None = None
    embedding_size: int | None = None
    limits: Limits | None = None
    defaults: SamplingParams | None = None
    endpoints: dict[str, Endpoint] | None = None
    sampler: SamplerFacts | None = None
    request_fields: dict[str, dict[str, Any]] | None = None


class BatchBounds(msgspec.Struct):
    """What one batch may be."""

    max_lines: int
    max_line_bytes: int
    max_file_bytes: int


class Capabilities(msgspec.Struct):
    """Every model that is served, and what any of them has: tools, and what is kept."""

    version: str
    models: list[ModelCapabilities]
    server_tools: tuple[str, ...]
    files: FilesSettings
    batches: BatchBounds | None


class CapabilitiesController(Controller):
    """For clients that ask before they send."""

    @route("/v1/capabilities", http_method=READ, operation=Operation(Capabilities, access="key"))
    async def tell(self, service: NamedDependency[Service]) -> Capabilities:
        """Tell what can be asked."""
        names, files = service.toolbox.names, service.settings.files
        data, batches = service.settings.data, None
        if data.folder:
            most_bytes = service.settings.max_body_bytes
            batches = BatchBounds(data.max_batch_lines, most_bytes, data.max_file_bytes)
        return Capabilities(__version__, _models(service), names, files, batches)


def _models(service: Service) -> list[ModelCapabilities]:
    bodies = BODIES | (GENERATE_BODIES if service.settings.takes_generate else {})
    known = service.request_fields
    return [_model(each, bodies, known) for each in service.models.values()]


def _model(model: ModelHandle, bodies: _Bodies, known: KnownFields) -> ModelCapabilities:
    if (facts := model.facts) is None:
        return ModelCapabilities(model.name, model.spec.aliases, model.state)
    return ModelCapabilities(
        model.name,
        model.spec.aliases,
        model.state,
        facts.modalities,
        facts.media_loaders,
        facts.limits.precision or None,
        facts.encoder_precision or None,
        facts.limits.hidden_size or None,
        Limits(
            facts.limits.max_sequence_tokens,
            facts.bounds.max_output_tokens,
            facts.limits.max_sequences,
            facts.bounds.max_images if facts.takes_images else 0,
            facts.bounds.images,
        ),
        facts.defaults,
        _endpoints(facts, bodies, known),
        SamplerFacts(sorted(facts.sampler.ignores), facts.sampler.is_exact),
        {name: dict(field.schema) for name, field in facts.request_fields.items()},
    )


def _endpoints(facts: RunnerFacts, bodies: _Bodies, known: KnownFields) -> dict[str, Endpoint]:
    """Return what can be posted, but for what this model would refuse."""
    taken = facts.request_fields.keys() & known.keys()  # others are not looked for in a body
    changing = {name for name, each in known.items() if any(f.changes != "nothing" for f in each)}
    idle = {EFFORT} - facts.options
    endpoints = {}
    for path, reader in bodies.items():
        if path != "/v1/embeddings" or facts.limits.hidden_size:
            absent = _absent(facts, is_answered=path not in _UNANSWERED) - idle
            shape = cast("Hashable", reader.shape)  # mypy does not know it of type[Any]
            refused = rejected_fields(reader) | places_of(shape, absent)
            own = reader.fields - refused - idle
            if reader.takes_added:
                own, refused = own | taken, refused | (changing - taken)
            without_effect = {n for n, action in actions(reader).items() if action == "no effect"}
            endpoints[path] = Endpoint(
                sorted(own),
                sorted(refused),
                {name: of for name, of in sorted(reader.known.aliases.items()) if of in own},
                sorted(without_effect - refused),
            )
    return endpoints


def _absent(facts: RunnerFacts, *, is_answered: bool) -> frozenset[str]:
    """Return what only other models can be asked; a prompt alone needs no more than a tokenizer."""
    absent = frozenset(get_args(Option)) - facts.options
    if not is_answered:
        return absent - {"skip_special_tokens"}
    if CONSTRAINT not in facts.options:
        absent |= set(Formed.__struct_fields__)
    return absent | facts.sampler.ignores
