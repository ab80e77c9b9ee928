"""The options of a chat body for writing its prompt, within the operator's limits."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, cast

from vlmkit.errors import RequestError
from vlmkit.interfaces.tokenizer import Option
from vlmkit.types.prompt_options import PromptOptions, ReasoningEffort, TemplateValue
from vlmkit_server.apis.openai_chat import wire

TemplateKind = type[bool] | type[int] | tuple[str, ...]

MAX_INT = 2**31
_KINDS: Mapping[str, TemplateKind] = {"bool": bool, "int": int}


def template_kinds(variables: Iterable[str]) -> dict[str, TemplateKind]:
    """Return the allowed types or values of a template's variables, from their settings."""
    pairs = (variable.split(":", 1) for variable in variables)
    return {name: _KINDS.get(kind) or tuple(kind.split("|")) for name, kind in pairs}


EFFORT: Option = "reasoning_effort"
_EFFORTS: Mapping[str, ReasoningEffort] = {"minimal": "low", "xhigh": "high", "max": "high"}


def prompt_options(
    chat: wire.ChatRequest, allowed: Mapping[str, TemplateKind], supported: Container[str]
) -> PromptOptions:
    """Return the options for writing a conversation.

    Args:
        chat: the body.
        allowed: the chat template variables that clients may set, with their types or values.
        supported: options of the model; without ``reasoning_effort``, an effort has no effect.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    continues = bool(chat.continue_final_message) or continues_last_message(chat.messages)
    if continues and chat.add_generation_prompt:
        raise RequestError(
            "add_generation_prompt and a last message that goes on exclude each other",
            param="add_generation_prompt",
        )
    return PromptOptions(
        add_generation_prompt=chat.add_generation_prompt is not False,
        continue_final_message=continues,
        chat_template_kwargs=_values(chat.chat_template_kwargs or {}, allowed),
        reasoning_effort=_effort(chat.reasoning_effort) if EFFORT in supported else None,
    )


def _effort(effort: wire.Effort | None) -> ReasoningEffort | None:
    """Return the nearest effort that chat templates support."""
    return None if effort is None else _EFFORTS.get(effort) or cast("ReasoningEffort", effort)


def continues_last_message(messages: Sequence[wire.ChatMessage]) -> bool:
    """Return whether the last message is marked as one that the answer continues.

    Raises:
        RequestError: an earlier message is marked.
    """
    *earlier, last = (
        isinstance(message, wire.AssistantMessage) and bool(message.prefix or message.partial)
        for message in messages
    )
    if any(earlier):
        number = earlier.index(True)
        raise RequestError(
            "only the last message can go on with the answer", param=f"messages[{number}]"
        )
    return last


def _values(
    given: Mapping[str, Any], allowed: Mapping[str, TemplateKind]
) -> dict[str, TemplateValue]:
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        if name not in allowed:
            raise RequestError(
                "chat_template_kwargs has a key that is not allowed here",
                param="chat_template_kwargs",
                code="unsupported_parameter",
                hint=f"allowed are {', '.join(sorted(allowed)) or 'none'}",
            )
        if not _matches(allowed[name], value):
            kind = allowed[name]
            expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else kind.__name__
            path = f"chat_template_kwargs.{name}"
            raise RequestError(f"{path} must be {expected}", param=path)
    return values


def _matches(kind: TemplateKind, value: object) -> bool:
    """Return whether a value is allowed; strings only from a list, as templates insert them."""
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    return type(value) is kind and -MAX_INT <= value < MAX_INT
