"""Items of the Responses API as answers and the store have them.

The items that clients send are in :mod:`vlmkit_server.apis.openai_responses.wire`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import msgspec

from vlmkit_server.apis.openai_chat.answer import TokenLogprob
from vlmkit_server.apis.openai_responses import wire as responses
from vlmkit_server.apis.openai_responses.namespaces import QualifiedName
from vlmkit_server.conversation.executed_calls import SERVER_LABEL
from vlmkit_server.wire.tool_fields import arguments_text

Status = Literal["in_progress", "completed", "incomplete"]


def new_id(kind: str) -> str:
    """Return a random id; it must not be guessable, since who knows an id may read its object."""
    return f"{kind}_{token_hex(24)}"


class OutputTextContent(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of an answer."""

    text: str = ""
    annotations: tuple[()] = ()
    logprobs: Sequence[TokenLogprob] = ()


def in_json(logprobs: Iterable[bytes]) -> Any:
    """Return encoded log-probabilities as a field's value, since objects take far more memory.

    Args:
        logprobs: the JSON of the list, in pieces.
    """
    return msgspec.Raw(b"".join(logprobs))


class ReasoningTextContent(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning of an answer."""

    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message with the text of an answer."""

    id: str
    status: Status = "in_progress"
    content: tuple[OutputTextContent, ...] = ()
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The reasoning of an answer; there is no summary."""

    id: str
    status: Status = "in_progress"
    content: tuple[ReasoningTextContent, ...] = ()
    summary: tuple[()] = ()


class CallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function call."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"
    namespace: str | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def started(cls, call_id: str, name: str, names: Mapping[str, QualifiedName]) -> "CallItem":
        """Return the item of a new call.

        Args:
            call_id: the id of the call.
            name: the qualified name of the function.
            names: the parts of qualified names.
        """
        if (parts := names.get(name)) is None:
            return cls(new_id("fc"), call_id, name)
        return cls(new_id("fc"), call_id, parts.name, namespace=parts.namespace)


class ToolFailure(msgspec.Struct, tag_field="type", tag="mcp_tool_execution_error"):
    """The error of a tool that the server executed."""

    content: list[responses.InputText]


class ExecutedCallItem(msgspec.Struct, tag_field="type", tag="mcp_call"):
    """A call of a tool that the server executes, and its result."""

    id: str
    name: str
    arguments: str = ""
    server_label: str = SERVER_LABEL
    output: str | None = None
    error: ToolFailure | None = None
    status: Status | Literal["failed"] = "in_progress"

    @classmethod
    def started(cls, call_id: str, name: str) -> "ExecutedCallItem":
        """Return the item of a new call; its id ends with the id of the call."""
        return cls(f"{new_id('mcp')}_{call_id}", name)

    def finish(self, text: str, *, is_error: bool) -> None:
        """Set the result of the call."""
        self.output, self.status = text, "failed" if is_error else "completed"
        self.error = ToolFailure([responses.InputText(text=text)]) if is_error else None


OutputItem = MessageItem | ReasoningItem | CallItem | ExecutedCallItem


class StoredItem(NamedTuple):
    """A stored item of a conversation: its id and its JSON."""

    id: str
    content: bytes


def stored_output(items: Sequence[OutputItem]) -> tuple[StoredItem, ...]:
    """Return the items of an answer in the form of the store."""
    return tuple(StoredItem(item.id, msgspec.json.encode(item)) for item in items)


def stored_input(given: responses.Input | None) -> tuple[StoredItem, ...]:
    """Return the input of a client in the form of the store: each item has a type and an id."""
    items = [responses.Item(role="user", content=given)] if isinstance(given, str) else given or ()
    return tuple(map(_stored, items))


def _stored(item: responses.Item) -> StoredItem:
    fields = _fields(item)
    stored = {"id": item.id or new_id(_PREFIXES[fields["type"]]), "status": "completed"} | fields
    return StoredItem(stored["id"], msgspec.json.encode(stored))


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "mcp_call": "mcp",
}


def _fields(item: responses.Item) -> dict[str, Any]:
    """Return the fields of an item in the shape in which the API lists it."""
    if item.type == "function_call":
        arguments = arguments_text(item.arguments)
        values = {"call_id": item.call_id, "name": item.name, "arguments": arguments}
        namespace = {"namespace": item.namespace} if item.namespace else {}
        return {"type": item.type} | values | namespace
    if item.type == "function_call_output":
        output = item.output if isinstance(item.output, str) else [*_parts(item.output or ())]
        return {"type": item.type, "call_id": item.call_id, "output": output}
    if item.type == "mcp_call":
        stored = ("name", "server_label", "error")
        output = item.output if isinstance(item.output, str) else [*_parts(item.output or ())]
        values = {name: getattr(item, name) for name in stored}
        arguments = arguments_text(item.arguments)
        return {"type": item.type, "output": output, "arguments": arguments} | values
    if item.type == "reasoning":
        summary = [{"type": "summary_text", "text": part.text} for part in item.summary or ()]
        return {"type": item.type, "summary": summary, "content": [*_parts(item.content or ())]}
    text = responses.OutputText if item.role == "assistant" else responses.InputText
    content = [text(text=item.content)] if isinstance(item.content, str) else item.content or ()
    return {"type": "message", "role": item.role, "content": [*_parts(content)]}


def _parts(parts: str | Sequence[responses.Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, responses.InputImage):
            image = {"type": "input_image", "image_url": part.image_url, "file_id": part.file_id}
            size = {"max_image_tokens": part.max_image_tokens} if part.max_image_tokens else {}
            yield image | {"detail": part.detail or "auto"} | size
        elif isinstance(part, responses.InputFile):
            values = {name: getattr(part, name) for name in part.__struct_fields__}
            given = {name: value for name, value in values.items() if value is not None}
            yield {"type": "input_file"} | given
        elif isinstance(part, responses.OutputText):
            yield {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        elif isinstance(part, responses.InputText):
            yield {"type": "input_text", "text": part.text}
        elif isinstance(part, responses.ReasoningText):
            yield {"type": "reasoning_text", "text": part.text}
