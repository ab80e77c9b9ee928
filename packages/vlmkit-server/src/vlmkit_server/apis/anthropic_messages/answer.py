"""Answers of ``/v1/messages``: Anthropic's objects, and their encoding as JSON.

Streamed answers are encoded in :mod:`vlmkit_server.apis.anthropic_messages.events`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import msgspec

from vlmkit.errors import RequestError
from vlmkit.types.completion import Choice, Completion, FinishReason, Usage
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.conversation.executed_calls import SERVER_LABEL, Round
from vlmkit_server.interfaces.conversation import NO_EXTRAS, AnswerHead, Extras
from vlmkit_server.wire.image_transforms import ImageTransform, image_transforms

SERVER_TOOL_ID_PREFIX = "mcptoolu_"  # starts the ids of calls that the server executes
INVALID_INPUT_KEY = (
    "INVALID_JSON"  # Anthropic's guide wraps arguments that are no object in this key
)

_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens"}


class OutputDetails(msgspec.Struct):
    """Kinds of tokens in the answer."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """The tokens of a request; each prompt token counts in one of three fields."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    cache_creation_input_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "MessageUsage":
        """Return the usage of a stream in Anthropic's shape."""
        return cls(
            usage.prompt_tokens - usage.cached_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
        )


class AnswerTextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class AnswerThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of the answer."""

    thinking: str
    signature: str = ""


class ServerToolUseBody(msgspec.Struct, tag_field="type", tag="mcp_tool_use"):
    """A call of a tool that the server executes."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    server_name: str = SERVER_LABEL


class ServerToolResultBody(msgspec.Struct, tag_field="type", tag="mcp_tool_result"):
    """The result of a tool that the server executed."""

    tool_use_id: str
    content: list[AnswerTextBlock]
    is_error: bool


class AnswerToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


Block = (
    AnswerTextBlock
    | AnswerThinkingBlock
    | AnswerToolUseBlock
    | ServerToolUseBody
    | ServerToolResultBody
)


class MessageBody(msgspec.Struct):
    """A whole answer, or the start of a streamed one."""

    id: str
    model: str
    content: list[Block]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    image_transforms: list[ImageTransform] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # an extension, as is the next
    places: tuple[GroundedRegion, ...] | msgspec.UnsetType = msgspec.UNSET
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


def stop_reason(
    finish_reason: FinishReason | None, stop_string: str | None, *, calls: bool
) -> str | None:
    """Return Anthropic's stop reason; an answer that stops with calls has ``tool_use``."""
    if stop_string is not None:
        return "stop_sequence"
    if calls and finish_reason == "stop":
        return "tool_use"
    return _REASONS.get(finish_reason) if finish_reason else None


def message_body(
    head: AnswerHead,
    completion: Completion,
    rounds: Iterable[Round] = (),
    extras: Extras = NO_EXTRAS,
) -> bytes:
    """Encode a whole answer.

    Args:
        head: the fields that every object of the answer repeats.
        completion: a completion of one choice.
        rounds: the rounds of an answer with tools of the server, whose content replaces the choice.
        extras: what the answer reports besides its content.
    """
    (choice,) = completion.choices
    content = [block for each in rounds for block in _round_content(each)] or _content(choice)
    images = completion.usage.images
    body = MessageBody(
        head.id,
        head.model,
        content,
        MessageUsage.of(completion.usage),
        stop_reason(choice.finish_reason, choice.stop_string, calls=bool(choice.tool_calls)),
        choice.stop_string,
        image_transforms(images) if extras.image_transforms else msgspec.UNSET,
        choice.places if extras.places else msgspec.UNSET,
    )
    return msgspec.json.encode(body)


def _content(choice: Choice) -> list[Block]:
    content: list[Block] = []
    if choice.reasoning:
        content.append(AnswerThinkingBlock(choice.reasoning))
    if choice.text:
        content.append(AnswerTextBlock(choice.text))
    return content + [
        AnswerToolUseBlock(call.id, call.name, _input(call)) for call in choice.tool_calls
    ]


def _round_content(tool_round: Round) -> list[Block]:
    """Return the reasoning, text, calls and results of a round."""
    content = _content(replace(tool_round.choice, tool_calls=[]))
    for call in tool_round.choice.tool_calls:
        content.append(ServerToolUseBody(SERVER_TOOL_ID_PREFIX + call.id, call.name, _input(call)))
    for call, result in tool_round.calls:
        if result is not None:
            content.append(
                server_tool_result(
                    SERVER_TOOL_ID_PREFIX + call.id, result.text, is_error=result.is_error
                )
            )
    return content


def server_tool_result(use_id: str, text: str, *, is_error: bool) -> ServerToolResultBody:
    """Return the block with the result of a call; an empty text adds no content."""
    return ServerToolResultBody(use_id, [AnswerTextBlock(text)] if text else [], is_error)


def _input(call: ToolCallPart) -> msgspec.Raw:
    """Return the arguments of a call as the model wrote them, wrapped if they are no object."""
    try:
        call.parsed()
    except RequestError:
        return msgspec.Raw(msgspec.json.encode({INVALID_INPUT_KEY: call.arguments}))
    return msgspec.Raw((call.arguments.strip() or "{}").encode())
