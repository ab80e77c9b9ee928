"""Translates a body of Anthropic's API to a body of the chat API.

The limits of content are checked when the chat is converted, as for all chats.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.apis.anthropic_messages import wire as anthropic
from vlmkit_server.apis.anthropic_messages.answer import SERVER_TOOL_ID_PREFIX
from vlmkit_server.apis.anthropic_messages.wire_tools import chat_tools
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.translation import Translation
from vlmkit_server.wire.answer_forms import JsonSchemaForm, NamedSchema
from vlmkit_server.wire.sampling_fields import AnswerFields
from vlmkit_server.wire.translation import set_field

_SHARED = frozenset({*AnswerFields.__struct_fields__, *wire.EXTENSION_FIELDS})
_SENT_PATHS = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "chat_template_kwargs.enable_thinking": "thinking",
    "chat_template_kwargs.thinking": "thinking",
}


class _SentBlock(NamedTuple):
    """A block, and its path in the body that was sent."""

    path: str
    block: Any


def as_chat(body: anthropic.MessagesRequest | anthropic.CountRequest) -> Translation:
    """Translate a body to the chat API.

    Raises:
        RequestError: two fields exclude each other, a tool lacks a field, or the input of a call is
            not valid UTF-8.
    """
    if isinstance(body, anthropic.MessagesRequest) and body.thread:
        raise RequestError(
            "thread is not supported by this server, which keeps no conversations",
            param="thread",
            code="thread_unsupported_request",
            hint="send the whole conversation",
        )
    conversation = _Conversation()
    if body.system:
        conversation.add_system(_sent_blocks("system", body.system))
    conversation.add(body.messages)
    fields = {name: getattr(body, name) for name in _SHARED & set(body.__struct_fields__)}
    fields |= chat_tools(body.tools, body.tool_choice)
    if isinstance(body, anthropic.MessagesRequest):
        fields["stop"] = body.stop_sequences
    if isinstance(body.thinking, anthropic.ThinkingEnabled | anthropic.ThinkingDisabled):
        is_enabled = isinstance(body.thinking, anthropic.ThinkingEnabled)
        fields["chat_template_kwargs"] = {"enable_thinking": is_enabled, "thinking": is_enabled}
    paths = conversation.paths
    if (
        isinstance(body.thinking, anthropic.ThinkingEnabled)
        and (budget := body.thinking.budget_tokens) is not None
    ):
        set_field(fields, paths, "thinking_token_budget", budget, "thinking.budget_tokens")
    if body.output_config:
        fields["reasoning_effort"] = body.output_config.effort
    if body.output_config and body.output_config.format:
        schema = NamedSchema(name="answer", schema=body.output_config.format.schema)
        form = JsonSchemaForm(json_schema=schema)
        set_field(fields, paths, "response_format", form, "output_config.format")
    chat = wire.ChatRequest(messages=conversation.messages, **fields)
    return Translation(chat, _SENT_PATHS | paths)


class _Conversation:
    """The messages of the chat, and the paths of their content in the body that was sent."""

    def __init__(self) -> None:
        self.messages: list[wire.ChatMessage] = []
        self.paths: dict[str, str] = {}

    def add(self, turns: Sequence[anthropic.Turn]) -> None:
        """Add turns; consecutive turns of one role are merged, and an empty last one is ignored."""
        last_turn = turns[-1]
        if (
            isinstance(last_turn, anthropic.AssistantTurn)
            and not last_turn.content
            and len(turns) > 1
        ):
            turns = turns[:-1]
        for role, numbered in groupby(enumerate(turns), lambda pair: type(pair[1])):
            blocks = [
                sent
                for number, turn in numbered
                for sent in _sent_blocks(f"messages[{number}].content", turn.content or "")
            ]
            if role is anthropic.SystemTurn:
                self.add_system(blocks)
            elif role is anthropic.UserTurn:
                self._user(blocks)
            else:
                self._assistant(blocks)
        last = self.messages[-1]
        if isinstance(last, wire.AssistantMessage):
            last.prefix = True

    def add_system(self, blocks: Iterable[_SentBlock]) -> None:
        """Add instructions as a system message."""
        sent = list(blocks)
        texts = [wire.TextPart(text=block.text) for _, block in sent]
        self._append(wire.SystemMessage(content=texts), sent[0].path)

    def _user(self, blocks: Iterable[_SentBlock]) -> None:
        for is_content, run in groupby(
            blocks, lambda b: not isinstance(b.block, anthropic.ToolResultBlock)
        ):
            sent = list(run)
            if is_content:
                self._append(wire.UserMessage(content=self._parts(sent)), sent[0].path)
                continue
            for path, result in sent:
                parts = self._parts(_sent_blocks(f"{path}.content", result.content or ""))
                message = wire.ToolMessage(content=parts, tool_call_id=result.tool_use_id)
                self._append(message, path)

    def _assistant(self, blocks: Sequence[_SentBlock]) -> None:
        """Add an assistant turn; each result of a call that the server executed splits it."""
        for is_result, run in groupby(
            blocks, lambda b: isinstance(b.block, anthropic.ServerToolResultBlock)
        ):
            if not is_result:
                self._assistant_part(list(run))
                continue
            for path, result in run:
                parts = self._parts(_sent_blocks(f"{path}.content", result.content))
                call_id = result.tool_use_id.removeprefix(SERVER_TOOL_ID_PREFIX)
                self._append(wire.ToolMessage(content=parts, tool_call_id=call_id), path)

    def _assistant_part(self, blocks: Sequence[_SentBlock]) -> None:
        texts: list[wire.TextPart] = []
        reasoning: list[str] = []
        calls: list[wire.ToolCall] = []
        for path, block in blocks:
            if isinstance(block, anthropic.TextBlock):
                texts.append(wire.TextPart(text=block.text))
            elif isinstance(block, anthropic.ThinkingBlock):
                reasoning.append(block.thinking)
            elif not isinstance(block, anthropic.RedactedThinkingBlock):
                arguments = f"{self._message_path}.tool_calls[{len(calls)}].function.arguments"
                self.paths[arguments] = f"{path}.input"
                called = wire.CalledFunction(name=block.name, arguments=_text(block.input))
                call_id = block.id
                if isinstance(block, anthropic.ServerToolUseBlock):
                    call_id = call_id.removeprefix(SERVER_TOOL_ID_PREFIX)
                calls.append(wire.ToolCall(id=call_id, function=called))
        if not (texts or reasoning or calls):
            texts.append(wire.TextPart(text=""))
        message = wire.AssistantMessage(
            content=texts or None,
            reasoning_content="".join(reasoning) or None,
            tool_calls=calls or None,
        )
        self._append(message, blocks[0].path)

    def _append(self, message: wire.ChatMessage, first: str) -> None:
        """Add a message; ``first`` is the path of its first block."""
        self.paths[self._message_path] = first.partition(".")[0]
        self.messages.append(message)

    def _parts(self, blocks: Iterable[_SentBlock]) -> list[wire.ShownPart]:
        """Return the parts of the next message."""
        parts: list[wire.ShownPart] = []
        for path, block in blocks:
            self._add(parts, path, block)
        return parts

    def _add(self, parts: list[wire.ShownPart], path: str, block: Any) -> None:
        """Add the parts of a block."""
        chat_path = f"{self._message_path}.content[{len(parts)}]"
        if isinstance(block, anthropic.TextBlock):
            parts.append(wire.TextPart(text=block.text))
        elif isinstance(block, anthropic.ImageBlock):
            for name in ("", ".url", ".file_id"):
                self.paths[f"{chat_path}.image_url{name}"] = f"{path}.source"
            parts.append(wire.ImagePart(image_url=_image(block.source)))
        else:
            labels = (label for label in (block.title, block.context) if label)
            parts += (wire.TextPart(text=f"{label}\n") for label in labels)
            self._add_document(parts, path, block)

    def _add_document(
        self, parts: list[wire.ShownPart], path: str, block: anthropic.DocumentBlock
    ) -> None:
        """Add the content of a document; only PDF, URL and uploaded documents are files."""
        source = block.source
        if isinstance(source, anthropic.TextSource | anthropic.ContentSource):
            for name in ("pages", "max_image_tokens", "max_file_tokens"):
                if getattr(block, name) is not None:
                    param_path = f"{path}.{name}"
                    raise RequestError(
                        f"{param_path} is for documents with pages", param=param_path
                    )
            content = source.data if isinstance(source, anthropic.TextSource) else source.content
            for inner_path, each in _sent_blocks(f"{path}.source.content", content):
                self._add(parts, inner_path, each)
            return
        chat_path = f"{self._message_path}.content[{len(parts)}].file"
        self.paths |= {chat_path: f"{path}.source", f"{chat_path}.pages": f"{path}.pages"}
        file = wire.NamedFile(
            file_data=source.data if isinstance(source, anthropic.PdfSource) else None,
            file_url=source.url if isinstance(source, anthropic.UrlSource) else None,
            file_id=source.file_id if isinstance(source, anthropic.FileSource) else None,
            pages=block.pages,
            max_image_tokens=block.max_image_tokens,
            max_file_tokens=block.max_file_tokens,
        )
        parts.append(wire.FilePart(file=file))

    @property
    def _message_path(self) -> str:
        """The path of the next message."""
        return f"messages[{len(self.messages)}]"


def _sent_blocks(path: str, content: str | Sequence[Any]) -> list[_SentBlock]:
    """Return the blocks of some content; a plain text is one block."""
    if isinstance(content, str):
        return [_SentBlock(path, anthropic.TextBlock(text=content))]
    return [_SentBlock(f"{path}[{index}]", block) for index, block in enumerate(content)]


def _text(value: msgspec.Raw) -> str:
    """Return the JSON text of a value that was not decoded, and therefore not checked.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise RequestError("the body is not valid JSON", code="invalid_json") from None


def _image(
    source: anthropic.Base64Source | anthropic.UrlSource | anthropic.FileSource,
) -> wire.ImageUrl:
    if isinstance(source, anthropic.FileSource):
        return wire.ImageUrl(file_id=source.file_id)
    if isinstance(source, anthropic.UrlSource):
        return wire.ImageUrl(url=source.url)
    return wire.ImageUrl(url=f"data:{source.media_type};base64,{source.data}")
