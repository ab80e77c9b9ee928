"""Reads a body of the Responses API as a conversation.

The limits of content are checked when the request is built, as for all conversations.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from vlmkit.errors import RequestError
from vlmkit.types.message import ReasoningPart, Role, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_chat.conversation import SentMessages
from vlmkit_server.apis.openai_chat.wire import ImageUrl
from vlmkit_server.apis.openai_responses import wire
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.namespaces import qualified_name, shown_functions
from vlmkit_server.conversation.tool_executor import with_valid_arguments
from vlmkit_server.interfaces.conversation import (
    Conversation,
    Extras,
    SentCall,
    SentMessage,
    SentPart,
)
from vlmkit_server.wire import tool_fields
from vlmkit_server.wire.answer_forms import (
    Formed,
    JsonSchemaForm,
    NamedSchema,
    RequestedForm,
    requested_form,
)
from vlmkit_server.wire.sampling import parameter_values
from vlmkit_server.wire.tool_fields import ToolFields, arguments_text, tool_values

EARLIER = "previous_response_id"
DETAIL_FIELD = "input.content.detail"
_FORMAT = "text.format"
_EFFORT = "reasoning.effort"
_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
    "reasoning_effort": _EFFORT,
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
_item = msgspec.json.Decoder(wire.Item)

Body = wire.ResponsesRequest | wire.InputTokensRequest


class ItemConversation(NamedTuple):
    """A conversation, and the number of items that each of its messages is made of."""

    conversation: Conversation
    num_items: Counter[int]


def resolve(body: Body, find: Callable[[str], StoredItem]) -> None:
    """Replace references in a body by the stored items of earlier answers.

    Args:
        body: the body; its input is modified.
        find: returns a stored item by its id.

    Raises:
        RequestError: an item is not stored.
    """
    found: dict[str, wire.Item] = {}
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


def conversation_of(body: Body, earlier: Sequence[StoredItem]) -> ItemConversation:
    """Return the conversation of a body.

    Args:
        body: the body, without references.
        earlier: the stored items of the conversation before it.

    Raises:
        RequestError: an item is wrong, or two fields exclude each other.
    """
    messages = _Messages(body)
    if body.instructions is not None:
        messages.drafts.append(_Draft("system", "instructions", [TextPart(body.instructions)]))
    for stored in earlier:
        messages.add(EARLIER, _item.decode(stored.content))
    if isinstance(body.input, str):
        messages.drafts.append(_Draft("user", "input", [TextPart(body.input)]))
        messages.num_items[len(messages.drafts) - 1] += 1
    else:
        if len(earlier) + len(body.input or ()) > wire.MAX_ITEMS:
            raise RequestError(f"the conversation has over {wire.MAX_ITEMS} items", param="input")
        for number, item in enumerate(body.input or ()):
            messages.add(f"input[{number}]", item)
    if not messages.drafts:
        raise RequestError("input must say something", param="input")
    names = dict(_NAMES)
    tools, form = tool_values(_tools(body)), _form(body)
    if form or tools["tools"]:
        names["constraint"] = form.field if form else "tools"
    conversation = Conversation(
        messages=[draft.message for draft in messages.drafts],
        model=body.model,
        constraint=form.constraint if form else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        effort_field=_EFFORT,
        detail_field=DETAIL_FIELD if messages.images.has_detail else "",
        names=names,
        **tools,
    )
    if isinstance(body, wire.ResponsesRequest):
        _set_answer_fields(conversation, body)
    return ItemConversation(conversation, messages.num_items)


def _set_answer_fields(conversation: Conversation, body: wire.ResponsesRequest) -> None:
    """Set what only bodies have that ask for an answer."""
    has_logprobs = wire.LOGPROBS in (body.include or ())
    sampling = parameter_values(body, body.stop)
    sampling.pop("max_tokens", None)  # only an empty value is accepted
    if body.max_output_tokens is not None:
        sampling["max_tokens"] = body.max_output_tokens
    conversation.sampling = sampling | {
        "logprobs": has_logprobs,
        "top_logprobs": body.top_logprobs or 0,
    }
    conversation.template_values = body.chat_template_kwargs or {}
    conversation.server_tools = body.server_tools or ()
    conversation.extras = Extras(
        logprobs=has_logprobs,
        image_transforms=bool(body.return_image_transforms),
        places=bool(body.return_places),
    )
    conversation.cache_salt = body.cache_salt or ""
    conversation.priority = body.priority or 0


def _form(body: Body) -> RequestedForm | None:
    """Return the requested format of the answer; None leaves it free."""
    fields = body if isinstance(body, Formed) else Formed()
    given = body.text.format if body.text else None
    if given is None:
        return requested_form(fields)
    if not isinstance(given, wire.SchemaForm):
        return requested_form(fields, _FORMAT, given)
    schema = NamedSchema(name=given.name, schema=given.schema, strict=given.strict)
    return requested_form(fields, _FORMAT, JsonSchemaForm(json_schema=schema))


def _tools(body: Body) -> ToolFields:
    """Return the callable functions and the tool choice in the form of the chat API's fields."""
    tools, choice = shown_functions(body.tools), body.tool_choice
    mode_or_tool: Literal["none", "auto", "required"] | tool_fields.ChosenTool | None
    if isinstance(choice, wire.AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        if not allowed <= {tool.name for tool in tools}:
            raise RequestError(
                "tool_choice allows a tool that is not in tools", param="tool_choice"
            )
        tools, mode_or_tool = [tool for tool in tools if tool.name in allowed], choice.mode
    elif isinstance(choice, wire.ChosenFunction):
        mode_or_tool = tool_fields.ChosenTool(function=tool_fields.ChosenFunction(name=choice.name))
    else:
        mode_or_tool = choice
        if mode_or_tool == "required":
            _check_callable(body.tools or [])
    return ToolFields(
        tools=[_tool(tool) for tool in tools] or None,
        tool_choice=mode_or_tool,
        parallel_tool_calls=body.parallel_tool_calls,
    )


def _check_callable(tools: Sequence[wire.AnyTool], parent_path: str = "") -> None:
    """Refuse unsupported tools if the answer must call one."""
    for number, tool in enumerate(tools):
        if isinstance(tool, wire.NamespaceTool):
            _check_callable(tool.tools, f"tools[{number}].")
        elif isinstance(tool, wire.OtherTool):
            path = f"{parent_path}tools[{number}].type"
            raise tool_fields.unsupported_type(path, tool_fields.FUNCTION, must_call=True)


def _tool(tool: wire.FunctionTool) -> tool_fields.Tool:
    function = tool_fields.Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return tool_fields.Tool(function=function)


@dataclass(slots=True)
class _Draft:
    """A message to which further items may be added."""

    role: Role
    path: str
    texts: list[SentPart] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[SentPart] = field(default_factory=list)
    call_id: str | None = None

    @property
    def message(self) -> SentMessage:
        """The message; the texts of its reasoning are joined once."""
        text = "".join(self.reasoning)
        thoughts: list[SentPart] = [ReasoningPart(text)] if text else []
        return SentMessage(
            self.role, [*thoughts, *self.texts, *self.calls], self.path, self.call_id
        )


class _Messages:
    """The messages of a body.

    Args:
        body: the body, whose fields set the size of images.
    """

    def __init__(self, body: Body) -> None:
        self.drafts: list[_Draft] = []
        self.num_items: Counter[int] = Counter()  # by message
        self.images = SentMessages(body)

    def add(self, path: str, item: wire.Item) -> None:
        """Add an item; consecutive reasoning, text and calls of the model become one message."""
        kind = _kind(path, item)
        if kind == "function_call_output":
            parts = self._parts(f"{path}.output", item.output or "", allows_media=True)
            self.drafts.append(_Draft("tool", path, parts, call_id=item.call_id or ""))
        elif kind == "function_call":
            self._add_call(path, item)
        elif kind == "mcp_call":
            self._add_executed_call(path, item)
        elif kind == "reasoning":
            self._add_reasoning(path, item)
        else:
            self._add_message(path, item)
        self.num_items[len(self.drafts) - 1] += 1

    def _add_message(self, path: str, item: wire.Item) -> None:
        content, is_user = item.content or "", item.role == "user"
        parts = self._parts(f"{path}.content", content, allows_media=is_user)
        if item.role == "assistant":
            self._assistant(path).texts += parts
        else:
            self.drafts.append(_Draft("user" if is_user else "system", path, parts))

    def _add_reasoning(self, path: str, item: wire.Item) -> None:
        parts = [part for part in item.content or () if isinstance(part, wire.ReasoningText)]
        text = "".join(part.text for part in parts or item.summary or ())
        if not text:
            return
        draft = self._assistant(path)
        if draft.texts or draft.calls:
            draft = _Draft("assistant", path)
            self.drafts.append(draft)
        draft.reasoning.append(text)

    def _add_call(self, path: str, item: wire.Item) -> None:
        name = qualified_name(item.namespace, item.name or "")
        call = ToolCallPart(item.call_id or "", name, arguments_text(item.arguments))
        arguments_path = path if path == EARLIER else f"{path}.arguments"
        self._assistant(path).calls.append(SentCall(call, arguments_path))

    def _add_executed_call(self, path: str, item: wire.Item) -> None:
        """Add a call that the server executed, which may be invalid, and its result."""
        call_id = (item.id or "").rpartition("_")[2]
        call = ToolCallPart(call_id, item.name or "", arguments_text(item.arguments))
        (valid,) = with_valid_arguments([call])
        self._assistant(path).calls.append(SentCall(valid, path))
        parts = self._parts(f"{path}.output", item.output or "", allows_media=False)
        self.drafts.append(_Draft("tool", path, parts, call_id=call_id))

    def _assistant(self, path: str) -> _Draft:
        """Return the assistant message at the end of the conversation, or a new one."""
        if not self.drafts or self.drafts[-1].role != "assistant":
            self.drafts.append(_Draft("assistant", path))
        return self.drafts[-1]

    def _parts(
        self, path: str, content: str | Iterable[wire.Part], *, allows_media: bool
    ) -> list[SentPart]:
        """Return the parts of some content."""
        if isinstance(content, str):
            return [TextPart(content)]
        parts: list[SentPart] = []
        for index, part in enumerate(content):
            part_path = EARLIER if path.startswith(EARLIER) else f"{path}[{index}]"
            if isinstance(part, wire.InputImage | wire.InputFile) and allows_media:
                parts.append(self._media_part(part_path, part))
            elif isinstance(part, wire.InputText | wire.OutputText):
                parts.append(TextPart(part.text))
            else:
                raise RequestError(
                    f"{part_path} does not belong into this item; supported are "
                    f"{', '.join(_MEDIA_TYPES if allows_media else _TEXT_TYPES)}",
                    param=part_path,
                )
        return parts or [TextPart("")]

    def _media_part(self, path: str, part: wire.InputImage | wire.InputFile) -> SentPart:
        """Return the part of an image or a file."""
        if isinstance(part, wire.InputFile):
            return self.images.file(path, part, path if path == EARLIER else f"{path}.pages")
        image = ImageUrl(
            url=part.image_url,
            file_id=part.file_id,
            detail=part.detail,
            max_image_tokens=part.max_image_tokens,
        )
        has_one = (part.image_url is None) != (part.file_id is None)
        if path != EARLIER and has_one:  # otherwise, the part as a whole is wrong
            path += ".image_url" if part.file_id is None else ".file_id"
        return self.images.image(path, image)


def _kind(path: str, item: wire.Item) -> str:
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


def _has_reasoning_parts(item: wire.Item) -> bool:
    parts = item.content or ()
    return not isinstance(parts, str) and all(isinstance(p, wire.ReasoningText) for p in parts)
