"""``POST /api/embed`` and ``POST /api/embeddings``: vectors of texts."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.types.completion import Completion
from vlmkit_ollama.answer import nanoseconds
from vlmkit_ollama.models import resolved_name
from vlmkit_ollama.wire import EmbeddingsRequest, EmbedRequest
from vlmkit_server.conversation.exchange import Exchange


class EmbedAnswer(msgspec.Struct):
    """The answer of ``/api/embed``; durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingAnswer(msgspec.Struct):
    """The answer of ``/api/embeddings``."""

    embedding: list[float]


async def embed(exchange: Exchange, body: EmbedRequest) -> ASGIApp:
    """Return vectors of length one in Ollama's shape."""
    began_s = time.monotonic()
    runner = await exchange.lease(resolved_name(exchange, body.model))
    if body.dimensions is not None and body.dimensions != runner.facts.limits.hidden_size:
        raise RequestError(
            "dimensions has a value that this model does not support",
            param="dimensions",
            code="unsupported_value",
            hint="leave it out",
        )
    texts = [body.input] if isinstance(body.input, str) else body.input
    completions = await exchange.embed(runner, texts, "input") if texts else []

    def encode() -> Iterator[bytes]:
        answer = EmbedAnswer(
            exchange.model,
            [_scaled(_vector(each)).tolist() for each in completions],
            nanoseconds(time.monotonic() - began_s),
            nanoseconds(exchange.load_s),
            sum(each.usage.prompt_tokens for each in completions),
        )
        yield msgspec.json.encode(answer)

    return exchange.pieces(encode)


async def embed_one(exchange: Exchange, body: EmbeddingsRequest) -> ASGIApp:
    """Return the vector of a prompt in Ollama's older shape, as long as the model makes it."""
    runner = await exchange.lease(resolved_name(exchange, body.model))
    (completion,) = await exchange.embed(runner, [body.prompt], "prompt")
    return exchange.json(EmbeddingAnswer(_vector(completion).tolist()))


def _vector(completion: Completion) -> Any:
    return completion.choices[0].embedding


def _scaled(vector: Any) -> Any:
    """Return a vector scaled to length one."""
    length = max(float(np.linalg.norm(vector.astype(np.float64))), 1e-12)
    return (vector / length).astype(np.float32)
