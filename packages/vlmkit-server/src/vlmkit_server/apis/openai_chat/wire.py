"""The chat API's bodies: what may be sent, and what comes back. Shapes and bounds, no behaviour.

Nothing is ignored in silence: a field that OpenAI defines but this server cannot honour is refused
by name, and a key that is not listed here is told, or refused where it would change the answer.
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
    """Text at this place of a message."""

    text: Text


class ImageUrl(ClientStruct):
    """Where an image is: a ``data:`` URL, or http(s) where the server fetches; how it is shown."""

    url: str | None = None
    detail: Detail | None = None
    file_id: Label | None = None  # ours, and the next
    max_image_tokens: MaxImageTokens = None


class ImagePart(ClientStruct, tag_field="type", tag="image_url"):
    """An image at this place of a message; some clients send its URL alone.

    One without an image, as vLLM takes it with a ``uuid``, is refused with what to send.
    """

    image_url: ImageUrl | str | None = None

    @property
    def image(self) -> ImageUrl:
        """The image, in the form that OpenAI defines."""
        if isinstance(self.image_url, str):
            return ImageUrl(url=self.image_url)
        return self.image_url or ImageUrl()


class NamedFile(ClientStruct):
    """A file, in one of three ways; which of its pages are shown, and how large."""

    file_data: str | None = None
    file_id: Label | None = None
    filename: Label | None = None  # without effect: a label

    # Ours.
    file_url: str | None = None
    detail: Detail | None = None
    max_image_tokens: MaxImageTokens = None
    max_file_tokens: MaxImageTokens = None
    pages: Label | None = None


class FilePart(ClientStruct, tag_field="type", tag="file"):
    """A file at this place of a message."""

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
    """What a user says and shows; ``images`` is Ollama's field, of files in base64."""

    content: Text | Parts
    images: Annotated[list[str], Meta(max_length=1024)] | None = None


class CalledFunction(ClientStruct):
    """What a call calls, and with what."""

    name: Label
    arguments: Arguments = None

    @property
    def arguments_json(self) -> str:
        """The arguments as text."""
        return arguments_text(self.arguments)


class ToolCall(ClientStruct, tag_field="type", tag="function"):
    """A call that the model made before."""

    id: Label
    function: CalledFunction


class AssistantMessage(ClientStruct, tag_field="role", tag="assistant"):
    """What the model said, thought and called before; an answer of this server fits as it is."""

    content: Text | Annotated[list[TextPart], Meta(max_length=1024)] | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None  # the same by its older name
    prefix: bool | None = None
    partial: bool | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=1024)] | None = None
    refusal: NotSupported = None
    audio: NotSupported = None
    function_call: NotSupported = None

    @property
    def reasoning_text(self) -> str:
        """What the model thought, by either name."""
        return self.reasoning or self.reasoning_content or ""


class ToolMessage(ClientStruct, tag_field="role", tag="tool"):
    """What a tool returned, which may be nothing; may show images."""

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

    # Ours.
    prompt_logprobs: NumTop | None = None
    server_tools: ServerTools = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    return_image_transforms: bool | None = None
    return_places: bool | None = None

    # Taken, and without effect by their own definition: labels, and what is the case anyway.
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None

    # Ignored, and told: they change no answer.
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
"""Fields that bodies of other APIs have by the same names."""

REFUSED_FIELDS = frozenset(refused_names(ChatRequest))
"""What OpenAI's chat API has and this server refuses."""

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
