"""``POST /v1/embeddings``: a vector for each text, or for one conversation with its pictures."""

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
from vlmkit.types.request import Request as Asked
from vlmkit_server.apis.openai_chat.answer import PromptTokensDetails
from vlmkit_server.apis.openai_chat.call import MessagesCall
from vlmkit_server.apis.openai_chat.convert import Converter, field_of
from vlmkit_server.apis.openai_chat.image_options import idle_details, image_options
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
        """Return vectors."""
        return EmbeddingsCall(request, service, EMBEDDINGS, converter)


class EmbeddingsCall(MessagesCall[EmbeddingRequest]):
    """Embeds what one body holds."""

    async def start(self, body: EmbeddingRequest) -> ASGIApp:
        """Embed everything, side by side as far as the engine has room; nothing is sent before."""
        runner = await self.runner(body.model)
        _check_dimensions(body.dimensions, runner.facts)
        scales = _scales(body)
        requests = await self._requests(body, runner.facts)
        names = plain_names(requests, "input")

        async def embedded(item: tuple[str, Asked]) -> Completion:
            name, request = item
            try:
                return await (await runner.asubmit(request)).aresult()
            except RequestError as error:
                error.param = field_of(error, body.messages or ())
                if body.messages is None:
                    rename_param(error, name)
                raise

        pairs = zip(names, requests, strict=True)
        done = await in_order(embedded, pairs, runner.facts.limits.max_sequences)
        as_text = body.encoding_format == "base64"
        make = partial(_encoded, done, self.model, as_text=as_text, scales=scales)
        return PiecedAnswer(make, self.service, self.headers)

    async def _requests(self, body: EmbeddingRequest, facts: RunnerFacts) -> list[Asked]:
        if (body.input is None) == (body.messages is None):
            raise RequestError("send either input or messages", param="input")
        same: dict[str, Any] = {
            "task": "embed",
            "priority": (body.priority or 0) + self.caller.priority,
            "tenant": self.caller.tenant,
            "account": self.caller.account,
            "trace": self.caller.trace,
        }
        if body.input is None:
            said = body.messages or ()
            self.note(idle_details(said, facts))
            shown = image_options(body)
            messages = await self.converter.messages(said, facts, self.caller, shown)
            return [Asked(messages=messages, **same)]
        texts = plain_texts(body.input, "input")
        try:
            check_plain_size(texts, self.service.settings.max_text_chars, facts)
        except RequestError as error:
            rename_param(error, "input")
            raise
        return [Asked(**plain_fields(text), **same) for text in texts]


def _check_dimensions(num: int | None, facts: RunnerFacts) -> None:
    """Refuse another length than the vectors have: a part of one means nothing."""
    if num is not None and num != facts.limits.hidden_size:
        raise RequestError(
            "dimensions has a value that this model does not support",
            param="dimensions",
            code="unsupported_value",
            hint="leave it out",
        )


def _scales(body: EmbeddingRequest) -> bool:
    """Tell whether vectors are to be scaled to length one, whatever the model does.

    Raises:
        RequestError: they are to be scaled in another way, or are not to be.
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


def _encoded(done: Seq[Completion], model: str, *, as_text: bool, scales: bool) -> Iterator[bytes]:
    """Encode an answer, in pieces."""
    vectors = [_scaled(_vector(each)) if scales else _vector(each) for each in done]
    images = tuple(num for each in done for num in each.usage.image_tokens)
    num_tokens = sum(each.usage.prompt_tokens for each in done)
    num_cached = sum(each.usage.cached_tokens for each in done)
    details = PromptTokensDetails(num_cached, sum(images), images)
    usage = EmbeddingUsage(num_tokens, num_tokens, details)
    data = (
        Embedding(index, _base64(vector) if as_text else vector.tolist())
        for index, vector in enumerate(vectors)
    )
    return filled(Embeddings(HOLE, model, usage), [listed(data, 1)])


def _vector(done: Completion) -> Vector:
    vector = done.choices[0].embedding
    if vector is None:
        raise Unavailable("the answer was cut off", code="aborted")
    return vector


def _scaled(vector: Vector) -> Vector:
    """Return a vector of length one; one that is of this length already stays as it is."""
    length = max(float(np.linalg.norm(vector.astype(np.float64))), 1e-12)
    if math.isclose(length, 1, rel_tol=1e-5):
        return vector
    scaled: Vector = (vector / length).astype(np.float32)
    return scaled


def _base64(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
