"""Bodies of requests to ``/v1/messages``, Anthropic's API: shapes and limits, no behaviour."""

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
    """Text of a turn."""

    text: Text


class Base64Source(ClientStruct, tag_field="type", tag="base64"):
    """The content of an image file."""

    media_type: Literal["image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(ClientStruct, tag_field="type", tag="url"):
    """The URL of an image or a document; http(s) if the server fetches."""

    url: str


class FileSource(ClientStruct, tag_field="type", tag="file"):
    """A file that was uploaded to ``/v1/files``."""

    file_id: Label


class ImageBlock(ClientStruct, tag_field="type", tag="image"):
    """An image of a turn."""

    source: Base64Source | UrlSource | FileSource


class PdfSource(ClientStruct, tag_field="type", tag="base64"):
    """The content of a PDF file."""

    media_type: Literal["application/pdf"]
    data: str


class TextSource(ClientStruct, tag_field="type", tag="text"):
    """A document of plain text."""

    media_type: Literal["text/plain"]
    data: Text


Contents = Annotated[list[TextBlock | ImageBlock], Meta(max_length=1024)]


class ContentSource(ClientStruct, tag_field="type", tag="content"):
    """A document of texts and images."""

    content: Text | Contents


class Citations(ClientStruct):
    """Whether the answer cites its sources, which is not supported."""

    enabled: Literal[False] | None = None


class DocumentBlock(ClientStruct, tag_field="type", tag="document"):
    """A document of a turn, its pages to show and their size."""

    source: PdfSource | TextSource | ContentSource | UrlSource | FileSource
    title: Text | None = None
    context: Text | None = None
    citations: Citations | None = None

    # Extensions.
    max_image_tokens: MaxImageTokens = None
    max_file_tokens: MaxImageTokens = None
    pages: Label | None = None


class ThinkingBlock(ClientStruct, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer; the signature has no effect."""

    thinking: Text
    signature: str = ""


class RedactedThinkingBlock(ClientStruct, tag_field="type", tag="redacted_thinking"):
    """Thinking that another server encrypted; its data is reported as ignored."""


class ToolUseBlock(ClientStruct, tag_field="type", tag="tool_use"):
    """A tool call of an earlier answer; its input is not decoded."""

    id: Label
    name: Label
    input: msgspec.Raw


class ServerToolUseBlock(ClientStruct, tag_field="type", tag="mcp_tool_use"):
    """A call that this server executed."""

    id: Label
    name: Label
    server_name: Label
    input: msgspec.Raw


Blocks = Annotated[list[TextBlock | ImageBlock | DocumentBlock], Meta(max_length=1024)]


class ToolResultBlock(ClientStruct, tag_field="type", tag="tool_result"):
    """The result of a tool, which may have images."""

    tool_use_id: Label
    content: Text | Blocks | None = None


Texts = Annotated[list[TextBlock], Meta(min_length=1, max_length=1024)]


class ServerToolResultBlock(ClientStruct, tag_field="type", tag="mcp_tool_result"):
    """The result of a call that this server executed; ``is_error`` has no effect."""

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
    """Instructions within the conversation."""

    content: Text | Texts


class UserTurn(ClientStruct, tag_field="role", tag="user"):
    """The content of a user, and results of tools."""

    content: Text | Annotated[list[UserBlock], Meta(min_length=1, max_length=1024)]


class AssistantTurn(ClientStruct, tag_field="role", tag="assistant"):
    """An earlier answer of the model; an answer of this server can be sent back unchanged."""

    content: Text | Annotated[list[AssistantBlock], Meta(max_length=1024)] | None = None


Turn = SystemTurn | UserTurn | AssistantTurn
Turns = Annotated[list[Turn], Meta(min_length=1, max_length=2048)]


class ThinkingEnabled(ClientStruct, tag_field="type", tag="enabled"):
    """The model reasons before it answers, with a budget of tokens."""

    budget_tokens: NumTokens | None = None


class ThinkingAdaptive(ClientStruct, tag_field="type", tag="adaptive"):
    """The model decides whether to reason, which is the default."""


class ThinkingDisabled(ClientStruct, tag_field="type", tag="disabled"):
    """The model answers without reasoning."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class SchemaFormat(ClientStruct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema; the schema is decoded after its length is checked."""

    schema: msgspec.Raw


class OutputConfig(ClientStruct):
    """The format of the answer, and the reasoning effort."""

    format: SchemaFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(ClientStruct):
    """The user id, which has no effect by definition."""

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

    # Extensions.
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    return_image_transforms: bool | None = None
    return_places: bool | None = None
    server_tools: ServerTools = None

    # Accepted without effect, by definition: labels, and values that describe the default.
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None

    # Refused: not supported, or fields of OpenAI's APIs only.
    thread: dict[str, Any] | None = None  # its error code makes clients send the whole conversation
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

    # Extensions.
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None

    # Refused.
    context_management: NotSupported = None
    mcp_servers: NotSupported = None
    prefill: NotSupported = None


class CountedTokens(msgspec.Struct):
    """The answer of ``/v1/messages/count_tokens``."""

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


class RenderMessagesRequest(MessagesRequest, kw_only=True):
    """The body of ``POST /v1/messages/render``."""

    light: bool | None = None


RENDER_MESSAGES = MESSAGES.of(RenderMessagesRequest)
