"""Bodies of requests to the chat API: shapes and limits, no behaviour.

No field is ignored silently. Fields of OpenAI that this server does not support are refused by
name. Unknown keys are reported, or refused if they would change the answer.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from vlmkit.types.image_options import MAX_PROCESSOR_OPTIONS
from vlmkit.types.sampling import NumTokens, NumTop
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import Label
from vlmkit_server.wire.tool_fields import Arguments, ToolFields, arguments_text

NotSupported: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None
"""The type of a field that OpenAI defines and this server refuses, unless it is empty."""

Text: TypeAlias = str  # the sum over a request is bounded by ServerSettings.max_text_chars


MaxImageTokens = Annotated[int, Meta(ge=1)] | None
ImageLimits = Annotated[dict[str, Any], Meta(max_length=MAX_PROCESSOR_OPTIONS)] | None


Detail = Literal["", "auto", "low", "high", "original"]
"""Some clients send an empty text for ``auto``."""


class ClientStruct(msgspec.Struct, kw_only=True):
    """Something a client sends."""


def refused_names(*shapes: type[msgspec.Struct]) -> set[str]:
    """Return the names of the fields that structs refuse."""
    return {f.name for shape in shapes for f in fields(shape) if f.type == NotSupported}


class TextPart(ClientStruct, tag_field="type", tag="text"):
    """Text of a message."""

    text: Text


class ImageUrl(ClientStruct):
    """The source of an image and its size: a ``data:`` URL, or http(s) if the server fetches."""

    url: str | None = None
    detail: Detail | None = None
    file_id: Label | None = None  # an extension, as is the next field
    max_image_tokens: MaxImageTokens = None


class ImagePart(ClientStruct, tag_field="type", tag="image_url"):
    """An image of a message; some clients send only its URL.

    A part with only a ``uuid``, which vLLM accepts, is refused with a hint.
    """

    image_url: ImageUrl | str | None = None

    @property
    def image(self) -> ImageUrl:
        """The image as the object that OpenAI defines."""
        if isinstance(self.image_url, str):
            return ImageUrl(url=self.image_url)
        return self.image_url or ImageUrl()


class NamedFile(ClientStruct):
    """A file from one of three sources, its pages to show and their size."""

    file_data: str | None = None
    file_id: Label | None = None
    filename: Label | None = None  # without effect: a label

    # Extensions.
    file_url: str | None = None
    detail: Detail | None = None
    max_image_tokens: MaxImageTokens = None
    max_file_tokens: MaxImageTokens = None
    pages: Label | None = None


class FilePart(ClientStruct, tag_field="type", tag="file"):
    """A file of a message."""

    file: NamedFile


Texts = Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]
ShownPart = TextPart | ImagePart | FilePart
Parts = Annotated[list[ShownPart], Meta(min_length=1, max_length=1024)]


class SystemMessage(ClientStruct, tag_field="role", tag="system"):
    """Instructions."""

    content: Text | Texts


class DeveloperMessage(ClientStruct, tag_field="role", tag="developer"):
    """Instructions, by their newer name."""

    content: Text | Texts


class UserMessage(ClientStruct, tag_field="role", tag="user"):
    """The text, images and files of a user; ``images`` is Ollama's field of base64 files."""

    content: Text | Parts
    images: Annotated[list[str], Meta(max_length=1024)] | None = None


class CalledFunction(ClientStruct):
    """The function and the arguments of a call."""

    name: Label
    arguments: Arguments = None

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text."""
        return arguments_text(self.arguments)


class ToolCall(ClientStruct, tag_field="type", tag="function"):
    """A tool call of an earlier answer."""

    id: Label
    function: CalledFunction


class AssistantMessage(ClientStruct, tag_field="role", tag="assistant"):
    """An earlier answer of the model; an answer of this server can be sent back unchanged."""

    content: Text | Annotated[list[TextPart], Meta(max_length=1024)] | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None  # an older name of ``reasoning``
    prefix: bool | None = None
    partial: bool | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=1024)] | None = None
    refusal: NotSupported = None
    audio: NotSupported = None
    function_call: NotSupported = None

    @property
    def reasoning_text(self) -> str:
        """The reasoning, from either field."""
        return self.reasoning or self.reasoning_content or ""


class ToolMessage(ClientStruct, tag_field="role", tag="tool"):
    """The result of a tool, which may be empty and may have images."""

    tool_call_id: Label
    content: Text | Annotated[list[ShownPart], Meta(max_length=1024)] | None = None


ServerTools = Annotated[list[Label], Meta(max_length=128)] | None
ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
ChatMessages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
TemplateValues = Annotated[dict[str, Any], Meta(max_length=64)]


class ChatRequest(ToolFields, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: ChatMessages
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    reasoning_effort: Effort | None = None

    # Extensions.
    prompt_logprobs: NumTop | None = None
    server_tools: ServerTools = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    return_image_transforms: bool | None = None
    return_places: bool | None = None

    # Accepted without effect, by definition: labels, and values that describe the default.
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None

    # Ignored and reported: they change no answer.
    verbosity: Verbosity | None = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Label | None = None
    service_tier: Label | None = None
    store: bool | None = None

    # Refused.
    audio: NotSupported = None
    function_call: NotSupported = None
    functions: NotSupported = None
    moderation: NotSupported = None
    web_search_options: NotSupported = None


EXTENSION_FIELDS = (
    "max_image_tokens",
    "mm_processor_kwargs",
    "return_image_transforms",
    "return_places",
    "server_tools",
)
"""Extensions that bodies of other APIs have by the same names."""

REFUSED_FIELDS = frozenset(refused_names(ChatRequest))
"""Fields of OpenAI's chat API that this server refuses."""

_HINTS = (
    "prediction",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "store",
    "verbosity",
)
CHAT = BodyReader(
    ChatRequest, refused_names(ChatRequest, AssistantMessage), _HINTS, takes_added=True
)
"""Reads bodies of the chat API."""


class RenderChatRequest(ChatRequest, kw_only=True):
    """The body of ``POST /v1/chat/completions/render``."""

    light: bool | None = None


RENDER_CHAT = CHAT.of(RenderChatRequest)
