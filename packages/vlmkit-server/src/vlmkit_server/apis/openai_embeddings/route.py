"""``POST /v1/embeddings``: a vector for each text, or for one conversation with its images."""

import base64
import math
from collections.abc import Iterator, Sequence as Seq
from functools import partial

import msgspec
import numpy as np
from litestar.types import ASGIApp

from vlmkit.checkpoints.pooling import Vector
from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.types.completion import Completion
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.answer import PromptTokensDetails
from vlmkit_server.apis.openai_chat.conversation import (
    DETAIL_FIELD,
    SentMessages,
    continues_last_message,
)
from vlmkit_server.apis.openai_embeddings.wire import (
    EMBEDDINGS,
    EUCLIDEAN,
    Embedding,
    EmbeddingRequest,
    Embeddings,
    EmbeddingUsage,
)
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.exchange.json_pieces import HOLE, filled, listed
from vlmkit_server.exchange.named_errors import naming_fields
from vlmkit_server.http.errors import OpenAiErrors, Unavailable
from vlmkit_server.interfaces.api import Route
from vlmkit_server.interfaces.conversation import Conversation
from vlmkit_server.wire.plain_prompts import plain_texts


class EmbeddingsApi(OpenAiErrors):
    """The embeddings API."""

    def routes(self, _host: Host) -> list[Route]:
        """Return the route of vectors."""
        return [
            Route(
                path="/v1/embeddings",
                scope="embed",
                handler=embed,
                reader=EMBEDDINGS,
                answer=Embeddings,
                answers="embed",
            )
        ]


async def embed(exchange: Exchange, body: EmbeddingRequest) -> ASGIApp:
    """Return embedding vectors."""
    runner = await exchange.lease(body.model)
    _check_dimensions(body.dimensions, runner.facts)
    is_scaled = _is_scaled(body)
    if (body.input is None) == (body.messages is None):
        raise RequestError("send either input or messages", param="input")
    if body.input is None:
        completions = [await _embedded(exchange, runner, body)]
    else:
        texts = plain_texts(body.input, "input")
        completions = await exchange.embed(runner, texts, "input", body.priority or 0)
    is_base64 = body.encoding_format == "base64"
    make = partial(_encoded, completions, exchange.model, is_base64=is_base64, is_scaled=is_scaled)
    return exchange.pieces(make)


async def _embedded(exchange: Exchange, runner: Runner, body: EmbeddingRequest) -> Completion:
    """Embed the conversation of a body."""
    conversation, caller = _conversation(body), exchange.caller
    exchange.report_unsupported(conversation, runner.facts)
    messages = await exchange.builder.messages(conversation.messages, runner.facts, caller)
    request = RunnerRequest(
        messages=messages,
        task="embed",
        priority=(body.priority or 0) + caller.priority,
        tenant=caller.tenant,
        account=caller.account,
        trace=caller.trace,
    )
    with naming_fields(conversation.field_of):
        return await (await runner.asubmit(request)).aresult()


def _conversation(body: EmbeddingRequest) -> Conversation:
    """Return the conversation of a body.

    Raises:
        RequestError: its last message is marked as one that an answer continues.
    """
    given = body.messages or []
    messages = SentMessages(body)
    if continues_last_message(given):
        path = f"messages[{len(given) - 1}]"
        raise RequestError(f"{path} cannot go on: nothing is answered here", param=path)
    messages.add(given)
    detail = DETAIL_FIELD if messages.has_detail else ""
    return Conversation(messages=messages.sent, detail_field=detail)


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
