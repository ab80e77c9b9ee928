"""Bodies of ``/tokenize`` and ``/detokenize``: shapes and bounds, no behaviour."""

import msgspec

from vlmkit_server.apis.openai_chat.wire import (
    ChatMessages,
    Effort,
    ImageLimits,
    MaxImageTokens,
    TemplateValues,
)
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.plain_prompts import TokenId
from vlmkit_server.wire.sampling_fields import ModelName
from vlmkit_server.wire.tool_fields import Tools


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /tokenize``: a prompt, or messages and how they are written.

    ``content``, ``add_special`` and ``with_pieces`` are llama.cpp's names; ``content`` gets no
    special tokens unless ``add_special`` asks for them.
    """

    model: ModelName | None = None
    prompt: str | None = None
    content: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
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


class TokenPiece(msgspec.Struct):
    """A token and its text, or its bytes where they are part of a character."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct):
    """What ``/tokenize`` answers; ``image_tokens_each`` is ours, one number for each image.

    ``tokens`` are ids, or with ``with_pieces`` texts, too.
    """

    count: int
    max_model_len: int
    tokens: tuple[int | TokenPiece, ...]
    token_strs: list[str] | None
    image_tokens_each: tuple[int, ...]


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /detokenize``."""

    model: ModelName | None = None
    tokens: list[TokenId]


class Detokenized(msgspec.Struct):
    """What ``/detokenize`` answers; ``content`` is the same text by llama.cpp's name."""

    prompt: str
    content: str


TOKENIZE = BodyReader(TokenizeRequest, about=frozenset({"prompt"}))
DETOKENIZE = BodyReader(DetokenizeRequest, about=frozenset())
