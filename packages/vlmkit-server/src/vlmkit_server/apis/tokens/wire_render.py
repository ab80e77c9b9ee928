"""What is sent to the routes that render, and what they answer: shapes, no behaviour.

What is answered has vLLM's shape, of a body for ``/inference/v1/generate``; what is ours besides,
and the text of the prompt, has no effect there.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit_server.apis.anthropic_messages.wire import MESSAGES, MessagesRequest
from vlmkit_server.apis.openai_chat.wire import CHAT, ChatRequest
from vlmkit_server.apis.openai_completions.wire import COMPLETIONS, CompletionRequest
from vlmkit_server.apis.openai_responses.wire import RESPONSES, ResponsesRequest
from vlmkit_server.wire.sampling_fields import StreamOptions

TokenIndex = Annotated[int, Meta(ge=0, lt=2**31)]


class RenderChatRequest(ChatRequest, kw_only=True):
    """The body of ``POST /v1/chat/completions/render``."""

    light: bool | None = None


class RenderCompletionRequest(CompletionRequest, kw_only=True):
    """The body of ``POST /v1/completions/render``; texts are light anyway."""

    light: bool | None = None


class RenderMessagesRequest(MessagesRequest, kw_only=True):
    """The body of ``POST /v1/messages/render``."""

    light: bool | None = None


class RenderResponsesRequest(ResponsesRequest, kw_only=True):
    """The body of ``POST /v1/responses/render``."""

    light: bool | None = None


class TokenRange(msgspec.Struct):
    """Where the tokens of an image are."""

    offset: TokenIndex
    length: TokenIndex


class RenderedFeatures(msgspec.Struct):
    """The images of a prompt, in order; ``mm_hashes`` is null where no pixel was decoded."""

    mm_placeholders: dict[str, list[TokenRange]]
    mm_hashes: dict[str, list[str]] | None


class RenderedImage(msgspec.Struct):
    """One image, ours: what it costs, how large it is and is seen, and how it is to be shown."""

    num_tokens: int
    width: int | None
    height: int | None
    used_width: int | None
    used_height: int | None
    detail: str
    max_image_tokens: int | None
    mm_processor_kwargs: Mapping[str, Any] | None
    page: int | None


class Rendered(msgspec.Struct):
    """One prompt as it would be computed, and how its answer would be made."""

    request_id: str
    model: str
    prompt: str
    token_ids: tuple[int, ...]
    features: RenderedFeatures | None
    sampling_params: dict[str, Any]
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int

    # Ours.
    num_tokens: int
    max_model_len: int
    images: list[RenderedImage]


RENDER_CHAT = CHAT.of(RenderChatRequest)
RENDER_COMPLETIONS = COMPLETIONS.of(RenderCompletionRequest)
RENDER_MESSAGES = MESSAGES.of(RenderMessagesRequest)
RENDER_RESPONSES = RESPONSES.of(RenderResponsesRequest)
