"""``POST /v1/embeddings``: a vector for each text, or for one conversation with its images."""

import base64
import math
from collections.abc import Iterator, Sequence as Seq
from functools import partial
from typing import Any

import msgspec
import numpy as np
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from vlmkit.checkpoints.pooling import Vector
from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.completion import Completion
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.answer import PromptTokensDetails
from vlmkit_server.apis.openai_chat.call import MessagesCall
from vlmkit_server.apis.openai_chat.convert import Converter, field_of
from vlmkit_server.apis.openai_chat.image_options import ignored_details, image_options
from vlmkit_server.apis.openai_embeddings.wire import (
    EMBEDDINGS,
    EUCLIDEAN,
    Embedding,
    EmbeddingRequest,
    Embeddings,
    EmbeddingUsage,
)
from vlmkit_server.exchange.full_response import PiecedAnswer
from vlmkit_server.exchange.json_pieces import HOLE, filled, listed
from vlmkit_server.exchange.service import Service
from vlmkit_server.gather import in_order
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.plain_prompts import (
    check_plain_size,
    plain_fields,
    plain_names,
    plain_texts,
    rename_param,
)


class EmbeddingsController(Controller):
    """The embeddings API."""

    path = "/v1/embeddings"

    @post(status_code=200, operation=Operation(Embeddings, EmbeddingRequest, access="embed"))
    async def create(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return embedding vectors."""
        return EmbeddingsCall(request, service, EMBEDDINGS, converter)


class EmbeddingsCall(MessagesCall[EmbeddingRequest]):
    """Embeds the texts or the conversation of one body."""

    async def start(self, body: EmbeddingRequest) -> ASGIApp:
        """Embed all inputs, as many at once as the engine has slots; nothing is sent before."""
        runner = await self.runner(body.model)
        _check_dimensions(body.dimensions, runner.facts)
        is_scaled = _is_scaled(body)
        requests = await self._requests(body, runner.facts)
        names = plain_names(requests, "input")

        async def embedded(item: tuple[str, RunnerRequest]) -> Completion:
            name, request = item
            try:
                return await (await runner.asubmit(request)).aresult()
            except RequestError as error:
                error.param = field_of(error, body.messages or ())
                if body.messages is None:
                    rename_param(error, name)
                raise

        pairs = zip(names, requests, strict=True)
        completions = await in_order(embedded, pairs, runner.facts.limits.max_sequences)
        is_base64 = body.encoding_format == "base64"
        make = partial(_encoded, completions, self.model, is_base64=is_base64, is_scaled=is_scaled)
        return PiecedAnswer(make, self.service, self.headers)

    async def _requests(self, body: EmbeddingRequest, facts: RunnerFacts) -> list[RunnerRequest]:
        if (body.input is None) == (body.messages is None):
            raise RequestError("send either input or messages", param="input")
        common: dict[str, Any] = {
            "task": "embed",
            "priority": (body.priority or 0) + self.caller.priority,
            "tenant": self.caller.tenant,
            "account": self.caller.account,
            "trace": self.caller.trace,
        }
        if body.input is None:
            sent = body.messages or ()
            self.report_ignored(ignored_details(sent, facts))
            default_options = image_options(body)
            messages = await self.converter.messages(sent, facts, self.caller, default_options)
            return [RunnerRequest(messages=messages, **common)]
        texts = plain_texts(body.input, "input")
        try:
            check_plain_size(texts, self.service.settings.max_text_chars, facts)
        except RequestError as error:
            rename_param(error, "input")
            raise
        return [RunnerRequest(**plain_fields(text), **common) for text in texts]


def _check_dimensions(num: int | None, facts: RunnerFacts) -> None:
    """Refuse any other length than that of the vectors, since a part of a vector has no meaning."""
    if num is not None and num != facts.limits.hidden_size:
        raise RequestError(
            "dimensions has a value that this model does not support",
            param="dimensions",
            code="unsupported_value",
            hint="leave it out",
        )


def _is_scaled(body: EmbeddingRequest) -> bool:
    """Return whether to scale vectors to length one, even if the model does not.

    Raises:
        RequestError: the body requests another scaling, or vectors without scaling.
    """
    for field, given, supported in (
        ("normalize", body.normalize, True),
        ("embd_normalize", body.embd_normalize, EUCLIDEAN),
    ):
        if given is not None and given != supported:
            raise RequestError(
                f"{field} is not supported with this value by this server; supported are "
                f"{msgspec.json.encode(supported).decode()}",
                param=field,
                code="unsupported_value",
                hint="scale the vectors",
            )
    return body.normalize is not None or body.embd_normalize is not None


def _encoded(
    completions: Seq[Completion], model: str, *, is_base64: bool, is_scaled: bool
) -> Iterator[bytes]:
    """Encode an answer in pieces."""
    vectors = [_scaled(_vector(each)) if is_scaled else _vector(each) for each in completions]
    images = tuple(num for each in completions for num in each.usage.image_tokens)
    num_tokens = sum(each.usage.prompt_tokens for each in completions)
    num_cached = sum(each.usage.cached_tokens for each in completions)
    details = PromptTokensDetails(num_cached, sum(images), images)
    usage = EmbeddingUsage(num_tokens, num_tokens, details)
    data = (
        Embedding(index, _base64(vector) if is_base64 else vector.tolist())
        for index, vector in enumerate(vectors)
    )
    return filled(Embeddings(HOLE, model, usage), [listed(data, 1)])


def _vector(completions: Completion) -> Vector:
    vector = completions.choices[0].embedding
    if vector is None:
        raise Unavailable("the answer was cut off", code="aborted")
    return vector


def _scaled(vector: Vector) -> Vector:
    """Return a vector scaled to length one; unchanged if it has this length already."""
    length = max(float(np.linalg.norm(vector.astype(np.float64))), 1e-12)
    if math.isclose(length, 1, rel_tol=1e-5):
        return vector
    scaled: Vector = (vector / length).astype(np.float32)
    return scaled


def _base64(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
