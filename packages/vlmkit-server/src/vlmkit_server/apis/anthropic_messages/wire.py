"""Bodies of ``/v1/messages``, Anthropic's API: shapes and bounds, no behaviour."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vlmkit.types.sampling import NumTokens
from vlmkit_server.apis.anthropic_messages.wire_tools import AnthropicTools, ToolChoice
from vlmkit_server.apis.openai_chat.wire import (
    ClientStruct,
    ImageLimits,
    MaxImageTokens,
    NotSupported,
    ServerTools,
    Text,
    refused_names,
)
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import AnswerFields, Label, ModelName


class TextBlock(ClientStruct, tag_field="type", tag="text"):
    """Text at this place of a turn."""

    text: Text


class Base64Source(ClientStruct, tag_field="type", tag="base64"):
    """A file of an image."""

    media_type: Literal["image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(ClientStruct, tag_field="type", tag="url"):
    """Where an image is; http(s) where the server fetches."""

    url: str


class FileSource(ClientStruct, tag_field="type", tag="file"):
    """A file that was sent to ``/v1/files`` before."""

    file_id: Label


class ImageBlock(ClientStruct, tag_field="type", tag="image"):
    """An image at this place of a turn."""

    source: Base64Source | UrlSource | FileSource


class PdfSource(ClientStruct, tag_field="type", tag="base64"):
    """A file of a document."""

    media_type: Literal["application/pdf"]
    data: str


class TextSource(ClientStruct, tag_field="type", tag="text"):
    """A document that is text."""

    media_type: Literal["text/plain"]
    data: Text


Contents = Annotated[list[TextBlock | ImageBlock], Meta(max_length=1024)]


class ContentSource(ClientStruct, tag_field="type", tag="content"):
    """A document that is made of texts and images."""

    content: Text | Contents


class Citations(ClientStruct):
    """Whether the answer says what it is taken from, which nothing here does."""

    enabled: Literal[False] | None = None


class DocumentBlock(ClientStruct, tag_field="type", tag="document"):
    """A document at this place of a turn; which of its pages are shown, and how large."""

    source: PdfSource | TextSource | ContentSource | UrlSource | FileSource
    title: Text | None = None
    context: Text | None = None
    citations: Citations | None = None

    # Ours.
    max_image_tokens: MaxImageTokens = None
    max_file_tokens: MaxImageTokens = None
    pages: Label | None = None


class ThinkingBlock(ClientStruct, tag_field="type", tag="thinking"):
    """What the model thought before; nothing here is signed."""

    thinking: Text
    signature: str = ""


class RedactedThinkingBlock(ClientStruct, tag_field="type", tag="redacted_thinking"):
    """Thinking that another server encrypted; its data is reported as ignored."""


class ToolUseBlock(ClientStruct, tag_field="type", tag="tool_use"):
    """A call that the model made before; its input is kept as it is written."""

    id: Label
    name: Label
    input: msgspec.Raw


class ServerToolUseBlock(ClientStruct, tag_field="type", tag="mcp_tool_use"):
    """A call that this server ran."""

    id: Label
    name: Label
    server_name: Label
    input: msgspec.Raw


Blocks = Annotated[list[TextBlock | ImageBlock | DocumentBlock], Meta(max_length=1024)]


class ToolResultBlock(ClientStruct, tag_field="type", tag="tool_result"):
    """What a tool returned; may show images."""

    tool_use_id: Label
    content: Text | Blocks | None = None


Texts = Annotated[list[TextBlock], Meta(min_length=1, max_length=1024)]


class ServerToolResultBlock(ClientStruct, tag_field="type", tag="mcp_tool_result"):
    """What came of it; whether that is an error is said in the text."""

    tool_use_id: Label
    content: Text | Annotated[list[TextBlock], Meta(max_length=1024)]
    is_error: bool = False


UserBlock = TextBlock | ImageBlock | DocumentBlock | ToolResultBlock
AssistantBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | ServerToolResultBlock
)


class SystemTurn(ClientStruct, tag_field="role", tag="system"):
    """Instructions on the way."""

    content: Text | Texts


class UserTurn(ClientStruct, tag_field="role", tag="user"):
    """What a user says and shows, and what tools returned."""

    content: Text | Annotated[list[UserBlock], Meta(min_length=1, max_length=1024)]


class AssistantTurn(ClientStruct, tag_field="role", tag="assistant"):
    """What the model thought, said and called; an answer of this server fits as it is."""

    content: Text | Annotated[list[AssistantBlock], Meta(max_length=1024)] | None = None


Turn = SystemTurn | UserTurn | AssistantTurn
Turns = Annotated[list[Turn], Meta(min_length=1, max_length=2048)]


class ThinkingEnabled(ClientStruct, tag_field="type", tag="enabled"):
    """The model is to think first, and about so many tokens at most."""

    budget_tokens: NumTokens | None = None


class ThinkingAdaptive(ClientStruct, tag_field="type", tag="adaptive"):
    """The model decides, as it is the case anyway."""


class ThinkingDisabled(ClientStruct, tag_field="type", tag="disabled"):
    """The model is not to think first."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class SchemaFormat(ClientStruct, tag_field="type", tag="json_schema"):
    """JSON that a schema describes; it is not decoded before it is known to be short."""

    schema: msgspec.Raw


class OutputConfig(ClientStruct):
    """What the answer is to be like."""

    format: SchemaFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(ClientStruct):
    """Who asks; without effect by its own definition."""

    user_id: Label | None = None


class MessagesRequest(AnswerFields, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: int
    messages: Turns
    system: Text | Texts | None = None
    stop_sequences: list[str] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tools: AnthropicTools | None = None
    tool_choice: ToolChoice | None = None

    # Ours.
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    return_image_transforms: bool | None = None
    return_places: bool | None = None
    server_tools: ServerTools = None

    # Taken, and without effect by their own definition: labels, and what is the case anyway.
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None

    # Refused: nothing here has it, or OpenAI's APIs alone do.
    thread: dict[str, Any] | None = None  # by a code at which clients send what they held back
    container: NotSupported = None
    context_management: NotSupported = None
    logprobs: NotSupported = None
    max_completion_tokens: NotSupported = None
    mcp_servers: NotSupported = None
    n: NotSupported = None
    prefill: NotSupported = None
    reasoning_effort: NotSupported = None
    stop: NotSupported = None
    top_logprobs: NotSupported = None


class CountRequest(ClientStruct):
    """The body of ``POST /v1/messages/count_tokens``."""

    messages: Turns
    model: ModelName | None = None
    system: Text | Texts | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tools: AnthropicTools | None = None
    tool_choice: ToolChoice | None = None

    # Ours.
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None

    # Refused.
    context_management: NotSupported = None
    mcp_servers: NotSupported = None
    prefill: NotSupported = None


class CountedTokens(msgspec.Struct):
    """What ``/v1/messages/count_tokens`` answers."""

    input_tokens: int


MESSAGES = BodyReader(
    MessagesRequest,
    {"thread"} | refused_names(MessagesRequest),
    takes_added=True,
)
COUNT = BodyReader(
    CountRequest,
    refused_names(CountRequest),
    about=frozenset({"prompt"}),
)
