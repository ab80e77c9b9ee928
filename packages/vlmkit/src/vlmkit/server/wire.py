"""The chat API's bodies: what may be sent, and what comes back. Shapes and bounds, no behaviour.

Nothing is ignored in silence: a field that OpenAI defines but this server cannot honour is refused
by name, and a key that is not listed here is told, or refused where it would change the answer.
"""

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from vlmkit.errors import RequestError
from vlmkit.server.ignored import ignored_names
from vlmkit.server.unused import unused_keys

NotSupported: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None
"""The type of a field that OpenAI defines and this server refuses, unless it is empty."""

Text: TypeAlias = str  # the sum over a request is bounded by ServerSettings.max_text_chars
Label = Annotated[str, Meta(max_length=512)]


class _Wire(msgspec.Struct, kw_only=True):
    """Something a client sends."""


class TextPart(_Wire, tag_field="type", tag="text"):
    """Text at this place of a message."""

    text: Text


class ImageUrl(_Wire):
    """Where an image is: a ``data:`` URL, or http(s) where the server fetches."""

    url: str


class ImagePart(_Wire, tag_field="type", tag="image_url"):
    """An image at this place of a message."""

    image_url: ImageUrl


Texts = Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]
Parts = Annotated[list[TextPart | ImagePart], Meta(min_length=1, max_length=1024)]


class SystemMessage(_Wire, tag_field="role", tag="system"):
    """Instructions."""

    content: Text | Texts


class DeveloperMessage(_Wire, tag_field="role", tag="developer"):
    """Instructions, by their newer name."""

    content: Text | Texts


class UserMessage(_Wire, tag_field="role", tag="user"):
    """What a user says and shows."""

    content: Text | Parts


class AssistantMessage(_Wire, tag_field="role", tag="assistant"):
    """What the model said before; an answer of this server fits as it is."""

    content: Text | Texts
    refusal: NotSupported = None
    audio: NotSupported = None
    function_call: NotSupported = None
    tool_calls: NotSupported = None


class ToolMessage(_Wire, tag_field="role", tag="tool"):
    """What a tool returned; may show images."""

    content: Text | Parts
    tool_call_id: Label


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class StreamOptions(_Wire):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ResponseFormat(_Wire):
    """The answer's form: text is the only one."""

    type: Literal["text"]
    json_schema: NotSupported = None


class ChatRequest(_Wire):
    """The body of ``POST /v1/chat/completions``.

    Bounds of the sampling fields are those of :class:`vlmkit.SamplingParams`, which checks them.
    """

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Annotated[int, Meta(ge=0)], float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None

    # Ours.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None

    # Taken, and without effect by their own definition: labels, and what is the case anyway.
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    response_format: ResponseFormat | None = None

    # Refused.
    audio: NotSupported = None
    function_call: NotSupported = None
    functions: NotSupported = None
    moderation: NotSupported = None
    parallel_tool_calls: NotSupported = None
    prediction: NotSupported = None
    prompt_cache_options: NotSupported = None
    prompt_cache_retention: NotSupported = None
    reasoning_effort: NotSupported = None
    tool_choice: NotSupported = None
    tools: NotSupported = None
    verbosity: NotSupported = None
    web_search_options: NotSupported = None


REFUSED_FIELDS = frozenset(f.name for f in fields(ChatRequest) if f.type == NotSupported)
"""What OpenAI's chat API has and this server refuses."""

_REFUSED_NAMES = REFUSED_FIELDS.union(
    f.name
    for struct in (AssistantMessage, ResponseFormat)
    for f in fields(struct)
    if f.type == NotSupported
)
_DECODER = msgspec.json.Decoder(ChatRequest)
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


def chat_request(body: bytes) -> tuple[ChatRequest, frozenset[str]]:
    """Decode and check a body; return it with the names of keys that are ignored.

    Raises:
        RequestError: names the first field that is wrong, and never shows what it held.
    """
    try:
        chat = _DECODER.decode(body)
        return chat, ignored_names(unused_keys(chat, body))
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
        raise RequestError("the body is not valid JSON", code="invalid_json") from None


def _refusal(text: str) -> RequestError:
    """Say what a validation error means, without the values that its text may quote."""
    found = _PLACE.search(text)
    place = found.group(1).replace("[...]", "") if found else ""
    if place.rpartition(".")[2] in _REFUSED_NAMES:
        message = f"{place} is not supported by this server"
        return RequestError(message, param=place, code="unsupported_parameter")
    if text.startswith("Invalid enum value"):
        message = f"{place} is not supported with this value by this server"
        return RequestError(message, param=place, code="unsupported_parameter")
    if text.startswith("Invalid value"):
        message = f"{place} has a value that this server does not support"
        return RequestError(message, param=place, code="unsupported_value")
    wrong = text[: found.start()] if found else text
    return RequestError(f"{place or 'the body'}: {wrong}", param=place or None)
