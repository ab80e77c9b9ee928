"""Bodies of ``/tokenize`` and ``/detokenize``: shapes and bounds, no behaviour."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.server.body import BodyReader
from vlmkit.server.plain import TokenId
from vlmkit.server.wire import ChatMessage, NotSupported
from vlmkit.server.wire_sampling import ModelName


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /tokenize``: a prompt, or messages."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: NotSupported = None


class Tokens(msgspec.Struct):
    """What ``/tokenize`` answers; ``image_tokens_each`` is ours, one number for each image."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None
    image_tokens_each: tuple[int, ...]


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /detokenize``."""

    model: ModelName | None = None
    tokens: list[TokenId]


class Detokenized(msgspec.Struct):
    """What ``/detokenize`` answers."""

    prompt: str


TOKENIZE = BodyReader(TokenizeRequest, {"tools"})
DETOKENIZE = BodyReader(DetokenizeRequest)
