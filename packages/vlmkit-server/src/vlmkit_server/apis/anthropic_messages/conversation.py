"""Reads a body of Anthropic's API as a conversation.

The limits of content are checked when the request is built, as for all conversations.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from vlmkit.errors import RequestError
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ReasoningPart, Role, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.anthropic_messages import wire
from vlmkit_server.apis.anthropic_messages.answer import SERVER_TOOL_ID_PREFIX
from vlmkit_server.apis.anthropic_messages.wire_tools import tool_fields
from vlmkit_server.interfaces.conversation import (
    Conversation,
    Extras,
    FileSource,
    ImageSource,
    SentCall,
    SentMessage,
    SentPart,
)
from vlmkit_server.wire.answer_forms import (
    Formed,
    JsonSchemaForm,
    NamedSchema,
    RequestedForm,
    requested_form,
)
from vlmkit_server.wire.sampling import parameter_values
from vlmkit_server.wire.tool_fields import tool_values

_EFFORT = "output_config.effort"
_FORMAT = "output_config.format"
_BUDGET = "thinking.budget_tokens"
_NAMES = {
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "chat_template_kwargs.enable_thinking": "thinking",
    "chat_template_kwargs.thinking": "thinking",
}


class _SentBlock(NamedTuple):
    """A block, and its path in the body."""

    path: str
    block: Any


def conversation_of(body: wire.MessagesRequest | wire.CountRequest) -> Conversation:
    """Return the conversation of a body.

    Raises:
        RequestError: two fields exclude each other, a tool lacks a field, or the input of a call is
            not valid UTF-8.
    """
    if isinstance(body, wire.MessagesRequest) and body.thread:
        raise RequestError(
            "thread is not supported by this server, which keeps no conversations",
            param="thread",
            code="thread_unsupported_request",
            hint="send the whole conversation",
        )
    messages = _Messages(body)
    if body.system:
        messages.add_system(_sent_blocks("system", body.system))
    messages.add(body.messages)
    tools = tool_values(tool_fields(body.tools, body.tool_choice))
    is_thinking = _is_thinking(body.thinking)
    names = dict(_NAMES)
    form = _form(body)
    if form or tools["tools"]:
        names["constraint"] = form.field if form else "tools"
    conversation = Conversation(
        messages=messages.sent,
        model=body.model,
        constraint=form.constraint if form else None,
        continues_last_message=messages.sent[-1].role == "assistant",
        template_values=(
            {} if is_thinking is None else {"enable_thinking": is_thinking, "thinking": is_thinking}
        ),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        effort_field=_EFFORT,
        names=names,
        **tools,
    )
    if isinstance(body, wire.MessagesRequest):
        _set_answer_fields(conversation, body, names)
    return conversation


def _set_answer_fields(
    conversation: Conversation, body: wire.MessagesRequest, names: dict[str, str]
) -> None:
    """Set what only bodies have that ask for an answer."""
    sampling, thinking = parameter_values(body, body.stop_sequences), body.thinking
    budget = thinking.budget_tokens if isinstance(thinking, wire.ThinkingEnabled) else None
    if budget is not None:
        if body.thinking_token_budget is not None:
            raise RequestError(
                f"thinking_token_budget and {_BUDGET} exclude each other",
                param="thinking_token_budget",
            )
        sampling["thinking_token_budget"] = budget
        names["thinking_token_budget"] = _BUDGET
    conversation.sampling = sampling
    conversation.server_tools = body.server_tools or ()
    conversation.extras = Extras(
        image_transforms=bool(body.return_image_transforms), places=bool(body.return_places)
    )
    conversation.cache_salt = body.cache_salt or ""
    conversation.priority = body.priority or 0


def _is_thinking(thinking: wire.Thinking | None) -> bool | None:
    """Return whether the model should reason; None leaves it to the model."""
    if isinstance(thinking, wire.ThinkingEnabled | wire.ThinkingDisabled):
        return isinstance(thinking, wire.ThinkingEnabled)
    return None


def _form(body: wire.MessagesRequest | wire.CountRequest) -> RequestedForm | None:
    """Return the requested format of the answer; None leaves it free."""
    fields = body if isinstance(body, Formed) else Formed()
    config = body.output_config
    if config is None or config.format is None:
        return requested_form(fields)
    schema = NamedSchema(name="answer", schema=config.format.schema)
    return requested_form(fields, _FORMAT, JsonSchemaForm(json_schema=schema))


class _Messages:
    """The messages of a body.

    Args:
        body: the body, whose fields set the size of images.
    """

    def __init__(self, body: wire.MessagesRequest | wire.CountRequest) -> None:
        self.sent: list[SentMessage] = []
        self._processor = body.mm_processor_kwargs or {}
        self._max_image_tokens = body.max_image_tokens

    def add(self, turns: Sequence[wire.Turn]) -> None:
        """Add turns; consecutive turns of one role are merged, and an empty last one is ignored."""
        last_turn = turns[-1]
        if isinstance(last_turn, wire.AssistantTurn) and not last_turn.content and len(turns) > 1:
            turns = turns[:-1]
        for role, numbered in groupby(enumerate(turns), lambda pair: type(pair[1])):
            blocks = [
                sent
                for number, turn in numbered
                for sent in _sent_blocks(f"messages[{number}].content", turn.content or "")
            ]
            if role is wire.SystemTurn:
                self.add_system(blocks)
            elif role is wire.UserTurn:
                self._user(blocks)
            else:
                self._assistant(blocks)

    def add_system(self, blocks: Iterable[_SentBlock]) -> None:
        """Add instructions as a system message."""
        sent = list(blocks)
        self._append("system", [TextPart(block.text) for _, block in sent], sent[0].path)

    def _user(self, blocks: Iterable[_SentBlock]) -> None:
        for is_content, run in groupby(
            blocks, lambda b: not isinstance(b.block, wire.ToolResultBlock)
        ):
            sent = list(run)
            if is_content:
                self._append("user", self._parts(sent), sent[0].path)
                continue
            for path, result in sent:
                parts = self._parts(_sent_blocks(f"{path}.content", result.content or ""))
                self._append("tool", parts, path, result.tool_use_id)

    def _assistant(self, blocks: Sequence[_SentBlock]) -> None:
        """Add an assistant turn; each result of a call that the server executed splits it."""
        for is_result, run in groupby(
            blocks, lambda b: isinstance(b.block, wire.ServerToolResultBlock)
        ):
            if not is_result:
                self._assistant_part(list(run))
                continue
            for path, result in run:
                parts = self._parts(_sent_blocks(f"{path}.content", result.content))
                call_id = result.tool_use_id.removeprefix(SERVER_TOOL_ID_PREFIX)
                self._append("tool", parts, path, call_id)

    def _assistant_part(self, blocks: Sequence[_SentBlock]) -> None:
        texts: list[SentPart] = []
        reasoning: list[str] = []
        calls: list[SentPart] = []
        for path, block in blocks:
            if isinstance(block, wire.TextBlock):
                texts.append(TextPart(block.text))
            elif isinstance(block, wire.ThinkingBlock):
                reasoning.append(block.thinking)
            elif not isinstance(block, wire.RedactedThinkingBlock):
                call_id = block.id
                if isinstance(block, wire.ServerToolUseBlock):
                    call_id = call_id.removeprefix(SERVER_TOOL_ID_PREFIX)
                call = ToolCallPart(call_id, block.name, _text(block.input))
                calls.append(SentCall(call, f"{path}.input"))
        text = "".join(reasoning)
        thoughts: list[SentPart] = [ReasoningPart(text)] if text else []
        self._append("assistant", [*thoughts, *texts, *calls], blocks[0].path)

    def _append(
        self, role: Role, parts: list[SentPart], first: str, call_id: str | None = None
    ) -> None:
        """Add a message; ``first`` is the path of its first block."""
        self.sent.append(SentMessage(role, parts, first.partition(".")[0], call_id))

    def _parts(self, blocks: Iterable[_SentBlock]) -> list[SentPart]:
        """Return the parts of blocks."""
        parts: list[SentPart] = []
        for path, block in blocks:
            self._add(parts, path, block)
        return parts

    def _add(self, parts: list[SentPart], path: str, block: Any) -> None:
        """Add the parts of a block."""
        if isinstance(block, wire.TextBlock):
            parts.append(TextPart(block.text))
        elif isinstance(block, wire.ImageBlock):
            parts.append(self._image(f"{path}.source", block.source))
        else:
            labels = (label for label in (block.title, block.context) if label)
            parts += (TextPart(f"{label}\n") for label in labels)
            self._add_document(parts, path, block)

    def _add_document(self, parts: list[SentPart], path: str, block: wire.DocumentBlock) -> None:
        """Add the content of a document; only PDF, URL and uploaded documents are files."""
        source = block.source
        if isinstance(source, wire.TextSource | wire.ContentSource):
            for name in ("pages", "max_image_tokens", "max_file_tokens"):
                if getattr(block, name) is not None:
                    param_path = f"{path}.{name}"
                    raise RequestError(
                        f"{param_path} is for documents with pages", param=param_path
                    )
            content = source.data if isinstance(source, wire.TextSource) else source.content
            for inner_path, each in _sent_blocks(f"{path}.source.content", content):
                self._add(parts, inner_path, each)
            return
        parts.append(
            FileSource(
                f"{path}.source",
                source.data if isinstance(source, wire.PdfSource) else None,
                source.url if isinstance(source, wire.UrlSource) else None,
                source.file_id if isinstance(source, wire.FileSource) else None,
                block.pages,
                f"{path}.pages",
                self._options(block.max_image_tokens),
                block.max_file_tokens,
            )
        )

    def _image(
        self, path: str, source: wire.Base64Source | wire.UrlSource | wire.FileSource
    ) -> ImageSource:
        options = self._options(None)
        if isinstance(source, wire.FileSource):
            return ImageSource(path, file_id=source.file_id, options=options)
        if isinstance(source, wire.UrlSource):
            return ImageSource(path, source.url, options=options)
        url = f"data:{source.media_type};base64,{source.data}"
        return ImageSource(path, url, options=options)

    def _options(self, max_tokens: int | None) -> ImageOptions:
        return ImageOptions(
            max_tokens=max_tokens or self._max_image_tokens, processor=self._processor
        )


def _sent_blocks(path: str, content: str | Sequence[Any]) -> list[_SentBlock]:
    """Return the blocks of some content; a plain text is one block."""
    if isinstance(content, str):
        return [_SentBlock(path, wire.TextBlock(text=content))]
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
