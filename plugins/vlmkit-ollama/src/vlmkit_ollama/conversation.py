"""Reads a body of Ollama's API as a conversation."""

from typing import Any

import msgspec
from msgspec import Raw

from vlmkit.types.base64_text import is_data_url
from vlmkit.types.message import ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_ollama import wire
from vlmkit_server.interfaces.conversation import (
    Conversation,
    Extras,
    ImageSource,
    SentCall,
    SentMessage,
    SentPart,
)
from vlmkit_server.wire.answer_forms import (
    Formed,
    JsonObjectForm,
    JsonSchemaForm,
    RequestedForm,
    requested_form,
)
from vlmkit_server.wire.tool_fields import (
    FUNCTION,
    Tool,
    arguments_text,
    check_types,
    tool_definition,
)

PENALTY_WINDOW = 64
"""Ollama's default of ``repeat_last_n``, in tokens."""

_RENAMED = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
_NAMES = {
    **{_RENAMED.get(name, name): f"options.{name}" for name in wire.Options.__struct_fields__},
    "top_logprobs": "top_logprobs",
    "chat_template_kwargs": "think",
    "chat_template_kwargs.enable_thinking": "think",
    "chat_template_kwargs.thinking": "think",
    "continue_final_message": "messages",
}


def chat_conversation(body: wire.OllamaChatRequest, model: str | None) -> Conversation:
    """Return the conversation of a body of ``/api/chat``.

    Args:
        body: a body with messages.
        model: the served name of its model.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    tools = body.tools or []
    check_types(
        [(tool.left_out, tool.function is not None) for tool in tools],
        FUNCTION,
        "function",
        must_call=False,
    )
    messages = _Messages()
    for message in body.messages:
        messages.add(message)
    conversation = _conversation(body, messages.sent, model)
    _set_tools(conversation, tools)
    return conversation


def generate_conversation(body: wire.OllamaGenerateRequest, model: str | None) -> Conversation:
    """Return the conversation of a body of ``/api/generate``: the prompt as a user's message.

    Args:
        body: a body with a prompt or images.
        model: the served name of its model.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    parts: list[SentPart] = [*_images("images", body.images), TextPart(body.prompt or "")]
    messages = [SentMessage("user", parts, "prompt")]
    if body.system:
        messages.insert(0, SentMessage("system", [TextPart(body.system)], "system"))
    return _conversation(body, messages, model, "prompt")


def _conversation(
    body: wire.AnswerFields,
    messages: list[SentMessage],
    model: str | None,
    field: str = "messages",
) -> Conversation:
    """Return a conversation with the fields that all bodies share; ``field`` has its texts."""
    form, think = _form(body.format), body.think
    return Conversation(
        messages=messages,
        model=model,
        sampling=sampling_values(body),
        constraint=form.constraint if form else None,
        continues_last_message=messages[-1].role == "assistant",
        template_values={} if think is None else dict.fromkeys(_TEMPLATE_NAMES, bool(think)),
        reasoning_effort=think if isinstance(think, str) else None,
        effort_field="think",
        extras=Extras(logprobs=bool(body.logprobs)),
        names=_NAMES | {"messages": field} | ({"constraint": "format"} if form else {}),
    )


_TEMPLATE_NAMES = ("enable_thinking", "thinking")  # of the variables by which templates are told


def sampling_values(body: wire.AnswerFields) -> dict[str, Any]:
    """Return the sampling parameters of a body, by the names of :class:`vlmkit.SamplingParams`."""
    given = msgspec.structs.asdict(body.options or wire.Options())
    values = {_RENAMED.get(name, name): v for name, v in given.items() if v is not None}
    if values.get("max_tokens", 1) <= 0:  # as many as fit
        del values["max_tokens"]
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if "repetition_penalty" in values:
        values.setdefault("repeat_last_n", PENALTY_WINDOW)
    if "stop" in values:
        stop = values["stop"]
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if body.logprobs:
        values |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return values


def _form(given: Raw) -> RequestedForm | None:
    """Return the form that ``format`` requests: JSON, a schema, or any text if empty."""
    start = bytes(memoryview(given)[:8])
    if start in (b"", b"null", b'""'):
        return None
    form = JsonObjectForm() if start == b'"json"' else JsonSchemaForm(schema=given)
    return requested_form(Formed(), "format", form)


def _images(path: str, given: wire.Images) -> list[ImageSource]:
    """Return images in base64; errors about each name its path."""
    return [
        ImageSource(f"{path}[{n}]", text if is_data_url(text) else f"data:;base64,{text}")
        for n, text in enumerate(given or ())
    ]


def _set_tools(conversation: Conversation, tools: list[Tool]) -> None:
    """Set the tools that the answer may call."""
    functions = [t.function for t in tools if t.function and t.left_out is None]
    if not functions:
        return
    conversation.tools = list(map(tool_definition, functions))
    conversation.num_tool_chars = len(msgspec.json.encode(tools))
    conversation.strict_tools = tuple(function.name for function in functions if function.strict)
    conversation.names = {"constraint": "tools"} | dict(conversation.names)


class _Messages:
    """Collects messages, and finds the call that each result answers.

    A call and its result may lack ids: then the result answers the first call of its tool's name,
    or the first that has no result yet.
    """

    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self._open: list[ToolCallPart] = []  # calls without a result, of the last answer
        self._num_calls = 0

    def add(self, message: wire.ChatMessage) -> None:
        """Add a message.

        Raises:
            RequestError: the arguments of a call are nested too deeply.
        """
        path = f"messages[{len(self.sent)}]"
        parts: list[SentPart] = [*_images(f"{path}.images", message.images)]
        if message.thinking and message.role == "assistant":
            parts.append(ReasoningPart(message.thinking))
        if message.content or not parts:
            parts.append(TextPart(message.content or ""))
        call_id = None
        if message.role == "assistant":
            parts += self._calls(path, message)
        elif message.role == "tool":
            call_id = self._answered(message)
        self.sent.append(SentMessage(message.role, parts, path, call_id))

    def _calls(self, path: str, message: wire.ChatMessage) -> list[SentCall]:
        """Return the calls of an answer; one without an id gets one."""
        calls = []
        for index, each in enumerate(message.tool_calls or ()):
            self._num_calls += 1
            function = each.function
            call_id = each.id or f"call_{self._num_calls}"
            call = ToolCallPart(call_id, function.name, arguments_text(function.arguments))
            calls.append(SentCall(call, f"{path}.tool_calls[{index}].function.arguments"))
        self._open = [call.call for call in calls]
        return calls

    def _answered(self, message: wire.ChatMessage) -> str | None:
        """Return the id of the call that a result answers; None if there is no call."""
        if message.tool_call_id:
            return message.tool_call_id
        named = [call for call in self._open if call.name == message.tool_name]
        if not (call := next(iter(named or self._open), None)):
            return None
        self._open.remove(call)
        return call.id
