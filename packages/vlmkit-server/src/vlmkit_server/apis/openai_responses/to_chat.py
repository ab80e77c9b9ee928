"""From a body of the Responses API to one of the chat API, which says the same.

What can be said, and how much of it, is checked where that of all chats is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from vlmkit.errors import RequestError
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.convert import field_of_chat
from vlmkit_server.apis.openai_chat.tool_executor import writable
from vlmkit_server.apis.openai_responses import wire as own
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.namespaces import full_name, shown_functions
from vlmkit_server.wire import tool_fields
from vlmkit_server.wire.answer_forms import JsonSchemaForm, NamedSchema, ResponseFormat
from vlmkit_server.wire.sampling_fields import AnswerFields
from vlmkit_server.wire.tool_fields import arguments_text
from vlmkit_server.wire.translation import set_field

EARLIER = "previous_response_id"
_SHARED = {*AnswerFields.__struct_fields__, *wire.OURS} - {
    "max_tokens"  # is refused here
}
_PLACES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
    "reasoning_effort": "reasoning.effort",
}
_FIELDS = {
    "message": ({"role", "content"}, set[str]()),
    "function_call": ({"call_id", "name", "arguments"}, {"namespace"}),
    "function_call_output": ({"call_id"}, {"output", "name", "namespace"}),
    "reasoning": (set[str](), {"content", "summary"}),
    "mcp_call": ({"id", "name", "arguments"}, {"server_label", "output", "error"}),
    "item_reference": ({"id"}, set[str]()),
}
"""Fields that an item of each type must have, and others that it may have."""

_TEXTS = ("input_text", "output_text")
_SHOWN = ("input_text", "input_image", "input_file", "output_text")
_OF_EVERY_ITEM = frozenset({"type", "id", "status"})
_item = msgspec.json.Decoder(own.Item)

Body = own.ResponsesRequest | own.InputTokensRequest


class Conversed(NamedTuple):
    """A body of the chat API.

    Attributes:
        chat: the body.
        places: what errors are to call its fields that have another name in what was sent.
        num_items: of how many items each message is made.
    """

    chat: wire.ChatRequest
    places: dict[str, str]
    num_items: Counter[int]

    def field_of(self, error: RequestError) -> str | None:
        """Return which field of what was sent an error is about."""
        field = field_of_chat(error, self.chat)
        return self.places.get(field, field) if field else None


def resolve(body: Body, find: Callable[[str], StoredItem]) -> None:
    """Put items that were answered before into the places where a body refers to them.

    Args:
        body: what was sent.
        find: returns an item by its id.

    Raises:
        RequestError: one is not stored.
    """
    found: dict[str, own.Item] = {}
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


def as_chat(body: Body, earlier: Sequence[StoredItem]) -> Conversed:
    """Return what a body says as a body of the chat API.

    Args:
        body: what was sent, without references.
        earlier: items of the conversation so far.

    Raises:
        RequestError: an item is wrong, or something is said in two ways.
    """
    conversation = _Conversation()
    if body.instructions is not None:
        conversation.messages.append(wire.SystemMessage(content=body.instructions))
    for kept in earlier:
        conversation.add(EARLIER, _item.decode(kept.content))
    if isinstance(body.input, str):
        conversation.messages.append(wire.UserMessage(content=body.input))
        conversation.num_items[len(conversation.messages) - 1] += 1
    else:
        if len(earlier) + len(body.input or ()) > own.MAX_ITEMS:
            raise RequestError(f"the conversation has over {own.MAX_ITEMS} items", param="input")
        for number, item in enumerate(body.input or ()):
            conversation.add(f"input[{number}]", item)
    conversation.end()
    if not conversation.messages:
        raise RequestError("input must say something", param="input")
    places = dict(_PLACES)
    fields = _fields(body, places)
    chat = wire.ChatRequest(messages=conversation.messages, **fields)
    return Conversed(chat, places | conversation.places, conversation.num_items)


def _fields(body: Body, places: dict[str, str]) -> dict[str, Any]:
    """Return all that a body says besides its conversation; note where it stands."""
    fields = {name: getattr(body, name) for name in _SHARED & set(body.__struct_fields__)}
    fields |= _tools(body)
    if isinstance(body, own.ResponsesRequest):
        fields["max_completion_tokens"] = body.max_output_tokens
        fields["logprobs"] = own.LOGPROBS in (body.include or ())
        fields["top_logprobs"] = body.top_logprobs
        fields["stop"] = body.stop
        fields["chat_template_kwargs"] = body.chat_template_kwargs
    if body.reasoning:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.text and body.text.format:
        set_field(fields, places, "response_format", _form(body.text.format), "text.format")
    return fields


def _form(given: ResponseFormat | own.SchemaForm) -> ResponseFormat:
    if not isinstance(given, own.SchemaForm):
        return given
    schema = NamedSchema(name=given.name, schema=given.schema, strict=given.strict)
    return JsonSchemaForm(json_schema=schema)


def _tools(body: Body) -> dict[str, Any]:
    """Return the tools that may be called, and whether they must be."""
    tools, choice = shown_functions(body.tools), body.tool_choice
    said: str | tool_fields.ChosenTool | None
    if isinstance(choice, own.AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        if not allowed <= {tool.name for tool in tools}:
            raise RequestError(
                "tool_choice allows a tool that is not in tools", param="tool_choice"
            )
        tools, said = [tool for tool in tools if tool.name in allowed], choice.mode
    elif isinstance(choice, own.ChosenFunction):
        said = tool_fields.ChosenTool(function=tool_fields.ChosenFunction(name=choice.name))
    else:
        said = choice
        if said == "required":
            _check_runnable(body.tools or [])
    return {
        "tools": [_tool(tool) for tool in tools] or None,
        "tool_choice": said,
        "parallel_tool_calls": body.parallel_tool_calls,
    }


def _check_runnable(tools: Sequence[own.AnyTool], within: str = "") -> None:
    """Refuse tools that the answer might have to call, and cannot."""
    for number, tool in enumerate(tools):
        if isinstance(tool, own.NamespaceTool):
            _check_runnable(tool.tools, f"tools[{number}].")
        elif isinstance(tool, own.OtherTool):
            place = f"{within}tools[{number}].type"
            raise tool_fields.unsupported_type(place, tool_fields.FUNCTION, must_call=True)


def _tool(tool: own.FunctionTool) -> tool_fields.Tool:
    function = tool_fields.Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return tool_fields.Tool(function=function)


class _Conversation:
    """Messages of the chat API, and where what is in them was sent."""

    def __init__(self) -> None:
        self.messages: list[wire.ChatMessage] = []
        self.places: dict[str, str] = {}
        self.num_items: Counter[int] = Counter()  # by message
        self._thoughts: list[tuple[wire.AssistantMessage, list[str]]] = []

    def end(self) -> None:
        """Put thoughts together: each is copied once, however many a message has."""
        for message, thoughts in self._thoughts:
            message.reasoning_content = "".join(thoughts)

    def add(self, place: str, item: own.Item) -> None:
        """Say an item; what the model thought, said and called in a row is one message."""
        kind = _kind(place, item)
        if kind == "function_call_output":
            parts = self._parts(f"{place}.output", item.output or "", may_show=True)
            self.messages.append(wire.ToolMessage(content=parts, tool_call_id=item.call_id or ""))
        elif kind == "function_call":
            self._call(place, item)
        elif kind == "mcp_call":
            self._served(place, item)
        elif kind == "reasoning":
            self._think(item)
        else:
            self._say(f"{place}.content", item)
        self.num_items[len(self.messages) - 1] += 1

    def _say(self, place: str, item: own.Item) -> None:
        parts = self._parts(place, item.content or "", may_show=item.role == "user")
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

    def _think(self, item: own.Item) -> None:
        parts = [part for part in item.content or () if isinstance(part, own.ReasoningText)]
        thought = "".join(part.text for part in parts or item.summary or ())
        if not thought:
            return
        message = self._assistant()
        if message.content or message.tool_calls:
            message = wire.AssistantMessage()
            self.messages.append(message)
        if not self._thoughts or self._thoughts[-1][0] is not message:
            self._thoughts.append((message, []))
        self._thoughts[-1][1].append(thought)

    def _call(self, place: str, item: own.Item) -> None:
        message = self._assistant()
        calls = message.tool_calls = message.tool_calls or []
        here = f"{self._here(-1)}.tool_calls[{len(calls)}].function.arguments"
        self.places[here] = place if place == EARLIER else f"{place}.arguments"
        name = full_name(item.namespace, item.name or "")
        called = wire.CalledFunction(name=name, arguments=item.arguments)
        calls.append(wire.ToolCall(id=item.call_id or "", function=called))

    def _served(self, place: str, item: own.Item) -> None:
        """Say a call that the server ran, which may be broken, and what came of it."""
        call_id = (item.id or "").rpartition("_")[2]
        written = ToolCallPart(call_id, item.name or "", arguments_text(item.arguments))
        (call,) = writable([written])
        message = self._assistant()
        calls = message.tool_calls = message.tool_calls or []
        called = wire.CalledFunction(name=call.name, arguments=call.arguments)
        calls.append(wire.ToolCall(id=call_id, function=called))
        parts = self._parts(f"{place}.output", item.output or "", may_show=False)
        self.messages.append(wire.ToolMessage(content=parts, tool_call_id=call_id))

    def _assistant(self) -> wire.AssistantMessage:
        """Return the assistant's message that is going on, or a new one."""
        last = self.messages[-1] if self.messages else None
        if isinstance(last, wire.AssistantMessage):
            return last
        message = wire.AssistantMessage()
        self.messages.append(message)
        return message

    def _parts(
        self, place: str, content: str | Iterable[own.Part], *, may_show: bool
    ) -> list[wire.ShownPart]:
        """Return the parts of the next message."""
        if isinstance(content, str):
            return [wire.TextPart(text=content)]
        parts: list[wire.ShownPart] = []
        for index, part in enumerate(content):
            here = EARLIER if place.startswith(EARLIER) else f"{place}[{index}]"
            if isinstance(part, own.InputImage | own.InputFile) and may_show:
                parts.append(self._shown(f"{self._here(0)}.content[{len(parts)}]", here, part))
            elif isinstance(part, own.InputText | own.OutputText):
                parts.append(wire.TextPart(text=part.text))
            else:
                raise RequestError(
                    f"{here} does not belong into this item; supported are "
                    f"{', '.join(_SHOWN if may_show else _TEXTS)}",
                    param=here,
                )
        return parts or [wire.TextPart(text="")]

    def _shown(self, there: str, here: str, part: own.InputImage | own.InputFile) -> wire.ShownPart:
        """Return an image or a file, which was sent here and goes there."""
        if isinstance(part, own.InputFile):
            pages = here if here == EARLIER else f"{here}.pages"
            self.places |= {f"{there}.file": here, f"{there}.file.pages": pages}
            return wire.FilePart(file=part)
        names = {"": "", ".url": ".image_url", ".file_id": ".file_id"}
        for name, own_name in names.items():
            place = here if here == EARLIER else f"{here}{own_name}"
            self.places[f"{there}.image_url{name}"] = place
        shown = wire.ImageUrl(
            url=part.image_url,
            file_id=part.file_id,
            detail=part.detail,
            max_image_tokens=part.max_image_tokens,
        )
        return wire.ImagePart(image_url=shown)

    def _here(self, offset: int) -> str:
        """The place of the next message, or of one before it."""
        return f"messages[{len(self.messages) + offset}]"


def _kind(place: str, item: own.Item) -> str:
    """Return an item's type, which not all clients send.

    Raises:
        RequestError: it lacks a field of its type, or has one of another.
    """
    kind = item.type or ("item_reference" if item.id and item.role is None else "message")
    needed, possible = _FIELDS[kind]
    given = {name for name in item.__struct_fields__ if getattr(item, name) is not None}
    optional = {"content"} if item.role == "assistant" else set[str]()
    if missing := needed - given - optional:
        name = min(missing)
        raise RequestError(f"{place}.{name} is needed in an item of type {kind}", param=place)
    if others := given - needed - possible - _OF_EVERY_ITEM:
        name = f"{place}.{min(others)}"
        raise RequestError(f"{name} does not belong into an item of type {kind}", param=name)
    if kind == "reasoning" and not _is_thought(item):
        where = f"{place}.content"
        raise RequestError(f"{where} must hold parts of type reasoning_text", param=where)
    return kind


def _is_thought(item: own.Item) -> bool:
    parts = item.content or ()
    return not isinstance(parts, str) and all(isinstance(p, own.ReasoningText) for p in parts)
