"""From a body of Anthropic's API to one of the chat API, which says the same.

What can be said, and how much of it, is checked where that of all chats is.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.apis.anthropic_messages import wire as own
from vlmkit_server.apis.anthropic_messages.answer import SERVED
from vlmkit_server.apis.anthropic_messages.wire_tools import chat_tools
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.wire.answer_forms import JsonSchemaForm, NamedSchema
from vlmkit_server.wire.sampling_fields import AnswerFields
from vlmkit_server.wire.translation import set_field

_SHARED = frozenset({*AnswerFields.__struct_fields__, *wire.OURS})
_PLACES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "chat_template_kwargs.enable_thinking": "thinking",
    "chat_template_kwargs.thinking": "thinking",
}


class Translation(NamedTuple):
    """A body of the chat API.

    Attributes:
        chat: the body.
        places: what errors are to call its fields that have another name in what was sent.
    """

    chat: wire.ChatRequest
    places: dict[str, str]


class _Placed(NamedTuple):
    """A block, and where it was sent."""

    place: str
    block: Any


def as_chat(body: own.MessagesRequest | own.CountRequest) -> Translation:
    """Return what a body says as a body of the chat API.

    Raises:
        RequestError: it says one thing in two ways, or half of it, or a call's input is no text.
    """
    if isinstance(body, own.MessagesRequest) and body.thread:
        raise RequestError(
            "thread is not supported by this server, which keeps no conversations",
            param="thread",
            code="thread_unsupported_request",
            hint="send the whole conversation",
        )
    conversation = _Conversation()
    if body.system:
        conversation.instruct(_placed("system", body.system))
    conversation.add(body.messages)
    fields = {name: getattr(body, name) for name in _SHARED & set(body.__struct_fields__)}
    fields |= chat_tools(body.tools, body.tool_choice)
    if isinstance(body, own.MessagesRequest):
        fields["stop"] = body.stop_sequences
    if isinstance(body.thinking, own.Thinks | own.ThinksNot):
        thinks = isinstance(body.thinking, own.Thinks)
        fields["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
    places = conversation.places
    if (
        isinstance(body.thinking, own.Thinks)
        and (budget := body.thinking.budget_tokens) is not None
    ):
        set_field(fields, places, "thinking_token_budget", budget, "thinking.budget_tokens")
    if body.output_config:
        fields["reasoning_effort"] = body.output_config.effort
    if body.output_config and body.output_config.format:
        schema = NamedSchema(name="answer", schema=body.output_config.format.schema)
        form = JsonSchemaForm(json_schema=schema)
        set_field(fields, places, "response_format", form, "output_config.format")
    chat = wire.ChatRequest(messages=conversation.messages, **fields)
    return Translation(chat, _PLACES | places)


class _Conversation:
    """Messages of the chat API, and where what is in them was sent."""

    def __init__(self) -> None:
        self.messages: list[wire.ChatMessage] = []
        self.places: dict[str, str] = {}

    def add(self, turns: Sequence[own.Turn]) -> None:
        """Say turns; those of one role in a row are one. An empty last one begins no answer."""
        last_turn = turns[-1]
        if isinstance(last_turn, own.AssistantTurn) and not last_turn.content and len(turns) > 1:
            turns = turns[:-1]
        for role, numbered in groupby(enumerate(turns), lambda pair: type(pair[1])):
            blocks = [
                placed
                for number, turn in numbered
                for placed in _placed(f"messages[{number}].content", turn.content or "")
            ]
            if role is own.SystemTurn:
                self.instruct(blocks)
            elif role is own.UserTurn:
                self._user(blocks)
            else:
                self._assistant(blocks)
        last = self.messages[-1]
        if isinstance(last, wire.AssistantMessage):
            last.prefix = True

    def instruct(self, blocks: Iterable[_Placed]) -> None:
        """Say what holds for all that follows."""
        placed = list(blocks)
        texts = [wire.TextPart(text=block.text) for _, block in placed]
        self._say(wire.SystemMessage(content=texts), placed[0].place)

    def _user(self, blocks: Iterable[_Placed]) -> None:
        for is_said, run in groupby(blocks, lambda b: not isinstance(b.block, own.ToolResultBlock)):
            placed = list(run)
            if is_said:
                self._say(wire.UserMessage(content=self._parts(placed)), placed[0].place)
                continue
            for place, result in placed:
                parts = self._parts(_placed(f"{place}.content", result.content or ""))
                message = wire.ToolMessage(content=parts, tool_call_id=result.tool_use_id)
                self._say(message, place)

    def _assistant(self, blocks: Sequence[_Placed]) -> None:
        """Say a turn, which results of calls that the server ran divide into messages."""
        for is_result, run in groupby(
            blocks, lambda b: isinstance(b.block, own.ServerToolResultBlock)
        ):
            if not is_result:
                self._answered(list(run))
                continue
            for place, result in run:
                parts = self._parts(_placed(f"{place}.content", result.content))
                call_id = result.tool_use_id.removeprefix(SERVED)
                self._say(wire.ToolMessage(content=parts, tool_call_id=call_id), place)

    def _answered(self, blocks: Sequence[_Placed]) -> None:
        texts: list[wire.TextPart] = []
        thoughts: list[str] = []
        calls: list[wire.ToolCall] = []
        for place, block in blocks:
            if isinstance(block, own.TextBlock):
                texts.append(wire.TextPart(text=block.text))
            elif isinstance(block, own.ThinkingBlock):
                thoughts.append(block.thinking)
            elif not isinstance(block, own.RedactedThinkingBlock):
                arguments = f"{self._here}.tool_calls[{len(calls)}].function.arguments"
                self.places[arguments] = f"{place}.input"
                called = wire.CalledFunction(name=block.name, arguments=_text(block.input))
                call_id = block.id
                if isinstance(block, own.ServerToolUseBlock):
                    call_id = call_id.removeprefix(SERVED)
                calls.append(wire.ToolCall(id=call_id, function=called))
        if not (texts or thoughts or calls):
            texts.append(wire.TextPart(text=""))
        message = wire.AssistantMessage(
            content=texts or None,
            reasoning_content="".join(thoughts) or None,
            tool_calls=calls or None,
        )
        self._say(message, blocks[0].place)

    def _say(self, message: wire.ChatMessage, first: str) -> None:
        """Add a message, whose first block was sent at a place."""
        self.places[self._here] = first.partition(".")[0]
        self.messages.append(message)

    def _parts(self, blocks: Iterable[_Placed]) -> list[wire.ShownPart]:
        """Return the parts of the next message."""
        parts: list[wire.ShownPart] = []
        for place, block in blocks:
            self._add(parts, place, block)
        return parts

    def _add(self, parts: list[wire.ShownPart], place: str, block: Any) -> None:
        """Add the parts of a block."""
        there = f"{self._here}.content[{len(parts)}]"
        if isinstance(block, own.TextBlock):
            parts.append(wire.TextPart(text=block.text))
        elif isinstance(block, own.ImageBlock):
            for name in ("", ".url", ".file_id"):
                self.places[f"{there}.image_url{name}"] = f"{place}.source"
            parts.append(wire.ImagePart(image_url=_image(block.source)))
        else:
            labels = (label for label in (block.title, block.context) if label)
            parts += (wire.TextPart(text=f"{label}\n") for label in labels)
            self._add_document(parts, place, block)

    def _add_document(
        self, parts: list[wire.ShownPart], place: str, block: own.DocumentBlock
    ) -> None:
        """Add what a document holds; one of texts and images is no file."""
        source = block.source
        if isinstance(source, own.TextSource | own.ContentSource):
            for name in ("pages", "max_image_tokens", "max_file_tokens"):
                if getattr(block, name) is not None:
                    where = f"{place}.{name}"
                    raise RequestError(f"{where} is for documents with pages", param=where)
            content = source.data if isinstance(source, own.TextSource) else source.content
            for inner, each in _placed(f"{place}.source.content", content):
                self._add(parts, inner, each)
            return
        there = f"{self._here}.content[{len(parts)}].file"
        self.places |= {there: f"{place}.source", f"{there}.pages": f"{place}.pages"}
        file = wire.NamedFile(
            file_data=source.data if isinstance(source, own.PdfSource) else None,
            file_url=source.url if isinstance(source, own.UrlSource) else None,
            file_id=source.file_id if isinstance(source, own.FileSource) else None,
            pages=block.pages,
            max_image_tokens=block.max_image_tokens,
            max_file_tokens=block.max_file_tokens,
        )
        parts.append(wire.FilePart(file=file))

    @property
    def _here(self) -> str:
        """The place of the next message."""
        return f"messages[{len(self.messages)}]"


def _placed(place: str, content: str | Sequence[Any]) -> list[_Placed]:
    """Return the blocks of some content; a text is one."""
    if isinstance(content, str):
        return [_Placed(place, own.TextBlock(text=content))]
    return [_Placed(f"{place}[{index}]", block) for index, block in enumerate(content)]


def _text(value: msgspec.Raw) -> str:
    """Return the JSON text of a value that was not decoded, and so was not checked, either.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise RequestError("the body is not valid JSON", code="invalid_json") from None


def _image(source: own.Base64Source | own.UrlSource | own.FileSource) -> wire.ImageUrl:
    if isinstance(source, own.FileSource):
        return wire.ImageUrl(file_id=source.file_id)
    if isinstance(source, own.UrlSource):
        return wire.ImageUrl(url=source.url)
    return wire.ImageUrl(url=f"data:{source.media_type};base64,{source.data}")
