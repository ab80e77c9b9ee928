"""Bodies of ``/tokenize`` and ``/detokenize``: shapes and bounds, no behaviour."""

import msgspec

from vlmkit.server.chat.wire import (
    ChatMessages,
    Effort,
    ImageLimits,
    MaxImageTokens,
    TemplateValues,
)
from vlmkit.server.fields.body import BodyReader
from vlmkit.server.fields.plain import TokenId
from vlmkit.server.fields.wire_sampling import ModelName
from vlmkit.server.fields.wire_tools import Tools


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /tokenize``: a prompt, or messages and how they are written."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: ChatMessages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    # Of messages, as chats have them.
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    reasoning_effort: Effort | None = None


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


TOKENIZE = BodyReader(TokenizeRequest, about=frozenset({"prompt"}))
DETOKENIZE = BodyReader(DetokenizeRequest, about=frozenset())
