"""Bodies of requests to ``/v1/responses``, OpenAI's Responses API: shapes and limits.

No behaviour.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta

from vlmkit.types.sampling import NumTokens, NumTop, StopString, StopStrings
from vlmkit_server.apis.openai_chat.wire import (
    ClientStruct,
    Detail,
    Effort,
    ImageLimits,
    MaxImageTokens,
    NamedFile,
    NotSupported,
    ServerTools,
    TemplateValues,
    Text,
    refused_names,
)
from vlmkit_server.wire.answer_forms import JsonObjectForm, TextForm
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import AnswerFields, Label, ModelName
from vlmkit_server.wire.tool_fields import OTHER_TOOL_TYPES, Arguments, FunctionName
from vlmkit_server.wire.unused import LeftOut

MAX_ITEMS = 2048
"""The largest number of items of one conversation, including stored ones."""


class InputText(ClientStruct, tag_field="type", tag="input_text"):
    """Text of an item."""

    text: Text


class InputImage(ClientStruct, tag_field="type", tag="input_image"):
    """An image of an item: a ``data:`` URL, or http(s) if the server fetches."""

    image_url: str | None = None
    file_id: Label | None = None
    detail: Detail | None = None
    max_image_tokens: MaxImageTokens = None  # an extension


class InputFile(NamedFile, tag_field="type", tag="input_file"):
    """A file of an item; ``file_url`` and ``detail`` are fields of OpenAI's API here."""


class OutputText(ClientStruct, tag_field="type", tag="output_text"):
    """Text of an earlier answer."""

    text: Text


class ReasoningText(ClientStruct, tag_field="type", tag="reasoning_text"):
    """Reasoning of an earlier answer."""

    text: Text


class SummaryText(ClientStruct, tag_field="type", tag="summary_text"):
    """A summary of the reasoning of an earlier answer."""

    text: Text


Part = InputText | InputImage | InputFile | OutputText | ReasoningText
Parts = Annotated[list[Part], Meta(max_length=1024)]
Outputs = Annotated[list[InputText | InputImage | InputFile | OutputText], Meta(max_length=1024)]
Summary = Annotated[list[SummaryText], Meta(max_length=1024)]
ItemType = Literal[
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "mcp_call",
    "item_reference",
]


class Item(ClientStruct):
    """One item of a conversation; its type, which some clients omit, determines its fields."""

    type: ItemType | None = None
    id: Label | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text | Parts | None = None
    summary: Summary | None = None
    call_id: Label | None = None
    name: Label | None = None
    namespace: Label | None = None
    arguments: Arguments = None
    output: Text | Outputs | None = None
    server_label: Label | None = None
    error: Any = None  # the output has it, too


class FunctionTool(ClientStruct, tag_field="type", tag="function"):
    """A function that the client executes."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OtherTool(LeftOut):
    """A tool of an unsupported type: ignored unless a call is required."""


if TYPE_CHECKING:
    Member = FunctionTool | OtherTool
else:
    _OTHERS = {
        tag: msgspec.defstruct(
            f"OtherTool_{tag}", [], bases=(OtherTool,), tag_field="type", tag=tag
        )
        for tag in OTHER_TOOL_TYPES
    }
    _CustomTool = _OTHERS["custom"]
    Member = FunctionTool | _CustomTool


class NamespaceTool(ClientStruct, tag_field="type", tag="namespace"):
    """Functions in a namespace, whose name precedes theirs."""

    name: FunctionName
    tools: Annotated[list[Member], Meta(max_length=128)]
    description: str | None = None


if TYPE_CHECKING:
    AnyTool = FunctionTool | NamespaceTool | OtherTool
else:
    AnyTool = Union[FunctionTool, NamespaceTool, *_OTHERS.values()]


class ChosenFunction(ClientStruct, tag_field="type", tag="function"):
    """The function that the answer must call."""

    name: Label


class AllowedTools(ClientStruct, tag_field="type", tag="allowed_tools"):
    """The only functions that the answer may or must call."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction], Meta(min_length=1, max_length=128)]


class SchemaForm(ClientStruct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema; the schema is decoded after its length is checked."""

    name: Annotated[str, Meta(max_length=512)]
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class TextConfig(ClientStruct):
    """The format of the answer's text; ``verbosity`` has no effect."""

    format: TextForm | JsonObjectForm | SchemaForm | None = None


class Reasoning(ClientStruct):
    """The reasoning effort; the other fields accept only the default behaviour."""

    effort: Effort | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(ClientStruct):
    """Options of a stream."""

    include_obfuscation: bool | None = None


class RequestImages(ClientStruct):
    """Options of all images."""

    context_compression: Literal["auto", "disabled"] | None = None  # has no effect


LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    # Always sent, or about unsupported tools.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


Input = Text | Annotated[list[Item], Meta(max_length=MAX_ITEMS)]
Tools = Annotated[list[AnyTool], Meta(max_length=128)]
Choice = Literal["none", "auto", "required"] | ChosenFunction | AllowedTools


class ResponsesRequest(AnswerFields, kw_only=True):
    """The body of ``POST /v1/responses``."""

    input: Input | None = None
    instructions: Text | None = None
    previous_response_id: Label | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: NumTokens | None = None
    include: Annotated[list[Includable], Meta(max_length=16)] | None = None
    top_logprobs: NumTop | None = None
    store: bool | None = None
    background: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None

    # Extensions, as in the chat API.
    stop: StopString | StopStrings | None = None
    chat_template_kwargs: TemplateValues | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    return_image_transforms: bool | None = None
    return_places: bool | None = None
    server_tools: ServerTools = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = (
        None  # of ``server_tools``; a field of OpenAI's API
    )

    # Accepted without effect, by definition: labels, and values that describe the default.
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    image: RequestImages | None = None

    # Ignored and reported: they change no answer.
    prompt_cache_options: Any = None
    prompt_cache_retention: Label | None = None
    service_tier: Label | None = None

    # Refused: not supported, or fields of the chat API only.
    access_programs: NotSupported = None
    background_options: NotSupported = None
    context_management: NotSupported = None
    conversation: NotSupported = None
    functions: NotSupported = None
    logprobs: NotSupported = None
    max_completion_tokens: NotSupported = None
    max_tokens: NotSupported = None  # type: ignore[assignment]  # a field of the chat API with another name here
    messages: NotSupported = None
    moderation: NotSupported = None
    n: NotSupported = None
    prompt: NotSupported = None
    reasoning_effort: NotSupported = None


class InputTokensRequest(ClientStruct):
    """The body of ``POST /v1/responses/input_tokens``: the fields that can add tokens."""

    model: ModelName | None = None
    input: Input | None = None
    instructions: Text | None = None
    previous_response_id: Label | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_image_tokens: MaxImageTokens = None  # an extension, as is the next field
    mm_processor_kwargs: ImageLimits = None

    # Refused.
    conversation: NotSupported = None
    personality: NotSupported = None


def functions_of(tools: Iterable[AnyTool] | None) -> list[FunctionTool]:
    """Return the tools that are functions."""
    return [tool for tool in tools or () if isinstance(tool, FunctionTool)]


RESPONSES = BodyReader(
    ResponsesRequest,
    refused_names(ResponsesRequest),
    {"prompt_cache_options", "prompt_cache_retention", "service_tier"},
    takes_added=True,
)
INPUT_TOKENS = BodyReader(
    InputTokensRequest, refused_names(InputTokensRequest), about=frozenset({"prompt"})
)


class RenderResponsesRequest(ResponsesRequest, kw_only=True):
    """The body of ``POST /v1/responses/render``."""

    light: bool | None = None


RENDER_RESPONSES = RESPONSES.of(RenderResponsesRequest)
