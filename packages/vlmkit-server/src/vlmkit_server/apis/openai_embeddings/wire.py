"""Bodies of ``/v1/embeddings``: shapes and limits, no behaviour."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit_server.apis.openai_chat.answer import PromptTokensDetails
from vlmkit_server.apis.openai_chat.wire import ChatMessage, ImageLimits, MaxImageTokens
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.plain_prompts import PlainInput
from vlmkit_server.wire.sampling_fields import Label, ModelName

EUCLIDEAN = 2
"""The value of llama.cpp's ``embd_normalize`` for vectors of length one."""


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /v1/embeddings``: texts, or one conversation as in vLLM."""

    model: ModelName | None = None
    input: PlainInput | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None  # vLLM's and TGI's
    embd_normalize: int | None = None  # llama.cpp's
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    user: Label | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None


class Embedding(msgspec.Struct):
    """One vector: numbers, or their little-endian float32 bytes in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Embeddings(msgspec.Struct):
    """The answer of ``/v1/embeddings``."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


EMBEDDINGS = BodyReader(EmbeddingRequest, about=frozenset({"prompt", "vector"}))
