"""Translates a body of the Responses API to a body of the chat API.

The limits of content are checked when the chat is converted, as for all chats.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vlmkit.errors import RequestError
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.tool_executor import with_valid_arguments
from vlmkit_server.apis.openai_chat.translation import Translation
from vlmkit_server.apis.openai_responses import wire as responses
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.namespaces import qualified_name, shown_functions
from vlmkit_server.wire import tool_fields
from vlmkit_server.wire.answer_forms import JsonSchemaForm, NamedSchema, ResponseFormat
from vlmkit_server.wire.sampling_fields import AnswerFields
from vlmkit_server.wire.tool_fields import arguments_text
from vlmkit_server.wire.translation import set_field

EARLIER = "previous_response_id"
_SHARED = {*AnswerFields.__struct_fields__, *wire.EXTENSION_FIELDS} - {
    "max_tokens"  # refused by this API
}
_SENT_PATHS = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
    "reasoning_effort": "reasoning.effort",
}
_ITEM_FIELDS = {
    "message": ({"role", "content"}, set[str]()),
    "function_call": ({"call_id", "name", "arguments"}, {"namespace"}),
    "function_call_output": ({"call_id"}, {"output", "name", "namespace"}),
    "reasoning": (set[str](), {"content", "summary"}),
    "mcp_call": ({"id", "name", "arguments"}, {"server_label", "output", "error"}),
    "item_reference": ({"id"}, set[str]()),
}
"""Required and optional fields of each type of item."""

_TEXT_TYPES = ("input_text", "output_text")
_MEDIA_TYPES = ("input_text", "input_image", "input_file", "output_text")
_COMMON_FIELDS = frozenset({"type", "id", "status"})
_item = msgspec.json.Decoder(responses.Item)

Body = responses.ResponsesRequest | responses.InputTokensRequest


@dataclass(frozen=True, slots=True)
class ItemTranslation(Translation):
    """A body of the Responses API as a body of the chat API.

    Attributes:
        num_items: the number of items that each message of the chat is made of.
    """

    num_items: Counter[int]


def resolve(body: Body, find: Callable[[str], StoredItem]) -> None:
    """Replace references in a body by the stored items of earlier answers.

    Args:
        body: the body; its input is modified.
        find: returns a stored item by its id.

    Raises:
        RequestError: an item is not stored.
    """
    found: dict[str, responses.Item] = {}
    items = body.input if isinstance(body.input, list) else []
    for number, item in enumerate(items):
        if item.id is None or _kind(f"input[{number}]", item) != "item_reference":
            continue
        if item.id not in found:
            try:
                found[item.id] = _item.decode(find(item.id).content)
            except RequestError as error:
                error.param = f"input[{number}].id"
                raise
        items[number] = found[item.id]


def as_chat(body: Body, earlier: Sequence[StoredItem]) -> ItemTranslation:
    """Translate a body to the chat API.

    Args:
        body: the body, without references.
        earlier: the stored items of the conversation before it.

    Raises:
        RequestError: an item is wrong, or two fields exclude each other.
    """
    conversation = _Conversation()
    if body.instructions is not None:
        conversation.messages.append(wire.SystemMessage(content=body.instructions))
    for stored in earlier:
        conversation.add(EARLIER, _item.decode(stored.content))
    if isinstance(body.input, str):
        conversation.messages.append(wire.UserMessage(content=body.input))
        conversation.num_items[len(conversation.messages) - 1] += 1
    else:
        if len(earlier) + len(body.input or ()) > responses.MAX_ITEMS:
            raise RequestError(
                f"the conversation has over {responses.MAX_ITEMS} items", param="input"
            )
        for number, item in enumerate(body.input or ()):
            conversation.add(f"input[{number}]", item)
    conversation.join_reasoning()
    if not conversation.messages:
        raise RequestError("input must say something", param="input")
    paths = dict(_SENT_PATHS)
    fields = _fields(body, paths)
    chat = wire.ChatRequest(messages=conversation.messages, **fields)
    return ItemTranslation(chat, paths | conversation.paths, conversation.num_items)


def _fields(body: Body, paths: dict[str, str]) -> dict[str, Any]:
    """Return the fields of the chat besides its messages, and record their paths in the body."""
    fields = {name: getattr(body, name) for name in _SHARED & set(body.__struct_fields__)}
    fields |= _tools(body)
    if isinstance(body, responses.ResponsesRequest):
        fields["max_completion_tokens"] = body.max_output_tokens
        fields["logprobs"] = responses.LOGPROBS in (body.include or ())
        fields["top_logprobs"] = body.top_logprobs
        fields["stop"] = body.stop
        fields["chat_template_kwargs"] = body.chat_template_kwargs
    if body.reasoning:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.text and body.text.format:
        set_field(
            fields, paths, "response_format", _response_format(body.text.format), "text.format"
        )
    return fields


def _response_format(given: ResponseFormat | responses.SchemaForm) -> ResponseFormat:
    if not isinstance(given, responses.SchemaForm):
        return given
    schema = NamedSchema(name=given.name, schema=given.schema, strict=given.strict)
    return JsonSchemaForm(json_schema=schema)


def _tools(body: Body) -> dict[str, Any]:
    """Return the fields for tools: the callable functions and the tool choice."""
    tools, choice = shown_functions(body.tools), body.tool_choice
    mode_or_tool: str | tool_fields.ChosenTool | None
    if isinstance(choice, responses.AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        if not allowed <= {tool.name for tool in tools}:
            raise RequestError(
                "tool_choice allows a tool that is not in tools", param="tool_choice"
            )
        tools, mode_or_tool = [tool for tool in tools if tool.name in allowed], choice.mode
    elif isinstance(choice, responses.ChosenFunction):
        mode_or_tool = tool_fields.ChosenTool(function=tool_fields.ChosenFunction(name=choice.name))
    else:
        mode_or_tool = choice
        if mode_or_tool == "required":
            _check_callable(body.tools or [])
    return {
        "tools": [_tool(tool) for tool in tools] or None,
        "tool_choice": mode_or_tool,
        "parallel_tool_calls": body.parallel_tool_calls,
    }


def _check_callable(tools: Sequence[responses.AnyTool], parent_path: str = "") -> None:
    """Refuse unsupported tools if the answer must call one."""
    for number, tool in enumerate(tools):
        if isinstance(tool, responses.NamespaceTool):
            _check_callable(tool.tools, f"tools[{number}].")
        elif isinstance(tool, responses.OtherTool):
            path = f"{parent_path}tools[{number}].type"
            raise tool_fields.unsupported_type(path, tool_fields.FUNCTION, must_call=True)


def _tool(tool: responses.FunctionTool) -> tool_fields.Tool:
    function = tool_fields.Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return tool_fields.Tool(function=function)


class _Conversation:
    """The messages of the chat, and the paths of their content in the body that was sent."""

    def __init__(self) -> None:
        self.messages: list[wire.ChatMessage] = []
        self.paths: dict[str, str] = {}
        self.num_items: Counter[int] = Counter()  # by message
        self._reasoning: list[tuple[wire.AssistantMessage, list[str]]] = []

    def join_reasoning(self) -> None:
        """Join the reasoning of each message, at the end so that each text is copied once."""
        for message, texts in self._reasoning:
            message.reasoning_content = "".join(texts)

    def add(self, path: str, item: responses.Item) -> None:
        """Add an item; consecutive reasoning, text and calls of the model become one message."""
        kind = _kind(path, item)
        if kind == "function_call_output":
            parts = self._parts(f"{path}.output", item.output or "", allows_media=True)
            self.messages.append(wire.ToolMessage(content=parts, tool_call_id=item.call_id or ""))
        elif kind == "function_call":
            self._add_call(path, item)
        elif kind == "mcp_call":
            self._executed_call(path, item)
        elif kind == "reasoning":
            self._add_reasoning(item)
        else:
            self._add_message(f"{path}.content", item)
        self.num_items[len(self.messages) - 1] += 1

    def _add_message(self, path: str, item: responses.Item) -> None:
        parts = self._parts(path, item.content or "", allows_media=item.role == "user")
        if item.role == "user":
            self.messages.append(wire.UserMessage(content=parts))
            return
        texts = [part for part in parts if isinstance(part, wire.TextPart)]
        if item.role == "assistant":
            message = self._assistant()
            if isinstance(message.content, list):
                message.content.extend(texts)
            else:
                message.content = texts
        elif item.role == "developer":
            self.messages.append(wire.DeveloperMessage(content=texts))
        else:
            self.messages.append(wire.SystemMessage(content=texts))

    def _add_reasoning(self, item: responses.Item) -> None:
        parts = [part for part in item.content or () if isinstance(part, responses.ReasoningText)]
        text = "".join(part.text for part in parts or item.summary or ())
        if not text:
            return
        message = self._assistant()
        if message.content or message.tool_calls:
            message = wire.AssistantMessage()
            self.messages.append(message)
        if not self._reasoning or self._reasoning[-1][0] is not message:
            self._reasoning.append((message, []))
        self._reasoning[-1][1].append(text)

    def _add_call(self, path: str, item: responses.Item) -> None:
        message = self._assistant()
        calls = message.tool_calls = message.tool_calls or []
        sent_path = f"{self._message_path(-1)}.tool_calls[{len(calls)}].function.arguments"
        self.paths[sent_path] = path if path == EARLIER else f"{path}.arguments"
        name = qualified_name(item.namespace, item.name or "")
        called = wire.CalledFunction(name=name, arguments=item.arguments)
        calls.append(wire.ToolCall(id=item.call_id or "", function=called))

    def _executed_call(self, path: str, item: responses.Item) -> None:
        """Add a call that the server executed, which may be invalid, and its result."""
        call_id = (item.id or "").rpartition("_")[2]
        call_part = ToolCallPart(call_id, item.name or "", arguments_text(item.arguments))
        (call,) = with_valid_arguments([call_part])
        message = self._assistant()
        calls = message.tool_calls = message.tool_calls or []
        called = wire.CalledFunction(name=call.name, arguments=call.arguments)
        calls.append(wire.ToolCall(id=call_id, function=called))
        parts = self._parts(f"{path}.output", item.output or "", allows_media=False)
        self.messages.append(wire.ToolMessage(content=parts, tool_call_id=call_id))

    def _assistant(self) -> wire.AssistantMessage:
        """Return the assistant message at the end of the conversation, or a new one."""
        last = self.messages[-1] if self.messages else None
        if isinstance(last, wire.AssistantMessage):
            return last
        message = wire.AssistantMessage()
        self.messages.append(message)
        return message

    def _parts(
        self, path: str, content: str | Iterable[responses.Part], *, allows_media: bool
    ) -> list[wire.ShownPart]:
        """Return the parts of the next message."""
        if isinstance(content, str):
            return [wire.TextPart(text=content)]
        parts: list[wire.ShownPart] = []
        for index, part in enumerate(content):
            sent_path = EARLIER if path.startswith(EARLIER) else f"{path}[{index}]"
            if isinstance(part, responses.InputImage | responses.InputFile) and allows_media:
                parts.append(
                    self._media_part(
                        f"{self._message_path(0)}.content[{len(parts)}]", sent_path, part
                    )
                )
            elif isinstance(part, responses.InputText | responses.OutputText):
                parts.append(wire.TextPart(text=part.text))
            else:
                raise RequestError(
                    f"{sent_path} does not belong into this item; supported are "
                    f"{', '.join(_MEDIA_TYPES if allows_media else _TEXT_TYPES)}",
                    param=sent_path,
                )
        return parts or [wire.TextPart(text="")]

    def _media_part(
        self, chat_path: str, sent_path: str, part: responses.InputImage | responses.InputFile
    ) -> wire.ShownPart:
        """Return the part of an image or a file.

        Args:
            chat_path: the path of the part in the chat.
            sent_path: the path of the part in the body.
            part: the image or file.
        """
        if isinstance(part, responses.InputFile):
            pages = sent_path if sent_path == EARLIER else f"{sent_path}.pages"
            self.paths |= {f"{chat_path}.file": sent_path, f"{chat_path}.file.pages": pages}
            return wire.FilePart(file=part)
        names = {"": "", ".url": ".image_url", ".file_id": ".file_id"}
        for name, sent_name in names.items():
            path = sent_path if sent_path == EARLIER else f"{sent_path}{sent_name}"
            self.paths[f"{chat_path}.image_url{name}"] = path
        shown = wire.ImageUrl(
            url=part.image_url,
            file_id=part.file_id,
            detail=part.detail,
            max_image_tokens=part.max_image_tokens,
        )
        return wire.ImagePart(image_url=shown)

    def _message_path(self, offset: int) -> str:
        """Return the path of the next message, or of one before it."""
        return f"messages[{len(self.messages) + offset}]"


def _kind(path: str, item: responses.Item) -> str:
    """Return the type of an item, which some clients omit.

    Raises:
        RequestError: the item lacks a field of its type, or has a field of another type.
    """
    kind = item.type or ("item_reference" if item.id and item.role is None else "message")
    needed, possible = _ITEM_FIELDS[kind]
    given = {name for name in item.__struct_fields__ if getattr(item, name) is not None}
    optional = {"content"} if item.role == "assistant" else set[str]()
    if missing := needed - given - optional:
        name = min(missing)
        raise RequestError(f"{path}.{name} is needed in an item of type {kind}", param=path)
    if others := given - needed - possible - _COMMON_FIELDS:
        name = f"{path}.{min(others)}"
        raise RequestError(f"{name} does not belong into an item of type {kind}", param=name)
    if kind == "reasoning" and not _has_reasoning_parts(item):
        param_path = f"{path}.content"
        raise RequestError(f"{param_path} must hold parts of type reasoning_text", param=param_path)
    return kind


def _has_reasoning_parts(item: responses.Item) -> bool:
    parts = item.content or ()
    return not isinstance(parts, str) and all(isinstance(p, responses.ReasoningText) for p in parts)
