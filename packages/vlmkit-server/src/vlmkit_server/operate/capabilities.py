"""``GET /v1/capabilities``: what each loaded model supports, and its limits.

Everything is derived from the running server: routes, the fields of their bodies, and the runners'
facts.
"""

from collections.abc import Hashable, Sequence as Seq
from typing import Any, cast, get_args

import msgspec
from litestar import Controller, route
from litestar.di import NamedDependency

from vlmkit._version import __version__
from vlmkit.interfaces.runner import CONSTRAINT, RunnerFacts
from vlmkit.interfaces.tokenizer import Option
from vlmkit.settings.images import ImageLimits
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.conversation.mounting import MountedApis
from vlmkit_server.conversation.request_builder import EFFORT
from vlmkit_server.exchange.service import KnownFields, Service
from vlmkit_server.fleet.model_handle import ModelHandle, State
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.api import Route
from vlmkit_server.operate.field_actions import actions, paths_of, rejected_fields
from vlmkit_server.settings.server import FilesSettings
from vlmkit_server.wire.answer_forms import Formed


class Endpoint(msgspec.Struct):
    """The fields of a body that are supported, refused by name, or known to have no effect.

    ``aliases`` are other names of parameters, each with the parameter's name.
    """

    parameters: list[str]
    refused: list[str]
    aliases: dict[str, str]
    without_effect: list[str]


class Limits(msgspec.Struct):
    """The limits of one request; null where the context alone limits it."""

    max_model_len: int
    max_output_tokens: int | None
    max_concurrent_sequences: int
    max_images: int
    images: ImageLimits


class SamplerFacts(msgspec.Struct):
    """Facts of the sampler: ignored parameters, and whether draws follow the softmax."""

    ignores: list[str]
    is_exact: bool


class ModelCapabilities(msgspec.Struct):
    """One model; everything but its names and state is null before it is first loaded.

    ``request_fields`` are those that plugins add, each with its JSON schema. ``media_loaders``
    open the files in requests, such as ``image`` and ``pdf``. ``precision`` is the engine's and
    ``encoder_precision`` the media encoder's; each is null where its component does not state it.
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
    """The limits of one batch."""

    max_lines: int
    max_line_bytes: int
    max_file_bytes: int


class Capabilities(msgspec.Struct):
    """Every served model, and what the server provides: tools, stored files and batches."""

    version: str
    models: list[ModelCapabilities]
    server_tools: tuple[str, ...]
    files: FilesSettings
    batches: BatchBounds | None


class CapabilitiesController(Controller):
    """Capabilities, for clients that check them before they send requests."""

    @route("/v1/capabilities", http_method=READ, operation=Operation(Capabilities, access="key"))
    async def capabilities(
        self, service: NamedDependency[Service], apis: NamedDependency[MountedApis]
    ) -> Capabilities:
        """Return what every model supports."""
        names, files = service.toolbox.names, service.settings.files
        data, batches = service.settings.data, None
        if data.folder:
            max_line_bytes = service.settings.max_body_bytes
            batches = BatchBounds(data.max_batch_lines, max_line_bytes, data.max_file_bytes)
        return Capabilities(__version__, _models(service, apis.routes), names, files, batches)


def _models(service: Service, routes: Seq[Route]) -> list[ModelCapabilities]:
    known = service.request_fields
    return [_model(each, routes, known) for each in service.models.values()]


def _model(model: ModelHandle, routes: Seq[Route], known: KnownFields) -> ModelCapabilities:
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
        _endpoints(facts, routes, known),
        SamplerFacts(sorted(facts.sampler.ignores), facts.sampler.is_exact),
        {name: dict(field.schema) for name, field in facts.request_fields.items()},
    )


def _endpoints(facts: RunnerFacts, routes: Seq[Route], known: KnownFields) -> dict[str, Endpoint]:
    """Return the endpoints and fields that a model supports."""
    supported = facts.request_fields.keys() & known.keys()  # other fields are not read from a body
    changing = {name for name, each in known.items() if any(f.changes != "nothing" for f in each)}
    idle = {EFFORT} - facts.options
    endpoints = {}
    for each in routes:
        reader = each.reader
        if reader is None or not each.answers:
            continue
        if each.answers == "embed" and not facts.limits.hidden_size:
            continue
        absent = _absent(facts, is_answered=each.answers != "prompt") - idle
        shape = cast("Hashable", reader.shape)  # mypy does not know it of type[Any]
        refused = rejected_fields(reader) | paths_of(shape, absent)
        parameters = reader.fields - refused - idle
        if reader.takes_added:
            parameters, refused = parameters | supported, refused | (changing - supported)
        without_effect = {n for n, action in actions(reader).items() if action == "no effect"}
        endpoints[each.path] = Endpoint(
            sorted(parameters),
            sorted(refused),
            {name: of for name, of in sorted(reader.known.aliases.items()) if of in parameters},
            sorted(without_effect - refused),
        )
    return endpoints


def _absent(facts: RunnerFacts, *, is_answered: bool) -> frozenset[str]:
    """Return fields of other models; a prompt without an answer needs a tokenizer alone."""
    absent = frozenset(get_args(Option)) - facts.options
    if not is_answered:
        return absent - {"skip_special_tokens"}
    if CONSTRAINT not in facts.options:
        absent |= set(Formed.__struct_fields__)
    return absent | facts.sampler.ignores
