"""What an answer to a conversation with tools keeps to, and how it is read.

Whether it may call them, must or must not, and what else it was asked to keep to, come to one
constraint and one prompt. Compiles nothing.
"""

import logging
from dataclasses import replace
from typing import NamedTuple

from vlmkit.errors import ConstraintError, RequestError
from vlmkit.formats.tool_call_grammar import tool_call_grammar
from vlmkit.interfaces.chat_format import Calling, ChannelFormat
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit.types.request import Request

log = logging.getLogger(__name__)

GUIDANCE = "vlmkit-guidance"
"""The distribution that brings a compiler of constraints."""


class AnswerPlan(NamedTuple):
    """How a request is answered.

    Attributes:
        prompt: as its answer is read.
        constraint: what the answer keeps to.
        banned_ids: tokens that it must not have, besides those that none has.
    """

    prompt: Prompt
    constraint: Constraint | None
    banned_ids: frozenset[int] = frozenset()


def answer_plan(request: Request, prompt: Prompt, *, holds: bool) -> AnswerPlan:
    """Return how a request is answered.

    Args:
        request: what was asked.
        prompt: what the tokenizer made of it.
        holds: whether answers can be held to a constraint.

    Raises:
        RequestError: nobody knows how this model calls tools, or the request contradicts itself.
        ConstraintError: it asks for what only a constraint can give.
    """
    calling = None if prompt.is_plain else prompt.calling
    if prompt.is_plain and request.tool_choice not in ("auto", "none"):
        raise RequestError(
            "tool_choice makes the answer call, but an answer that goes on with a message is text",
            param="tool_choice",
        )
    if request.tools and calling is None and not prompt.is_plain and request.tool_choice != "none":
        raise RequestError(
            "this model takes no tools: how it calls them is not known",
            param="tools",
            hint="vlmkit.kit.tool_call_formats has the ways that are known",
        )
    if prompt.channels is not None and not prompt.is_plain:
        return _in_channels(request, prompt, prompt.channels, holds=holds)
    if calling is None or request.tool_choice == "none":
        banned = frozenset() if calling is None else _opening(calling)
        # An answer within a constraint is text from its first token.
        opens = prompt.opens_reasoning and request.constraint is None
        read = replace(prompt, calling=None, opens_reasoning=opens)
        return AnswerPlan(read, request.constraint, banned)
    if not holds:
        _check_unheld(request)
        return AnswerPlan(prompt, request.constraint)
    grammar = tool_call_grammar(
        calling,
        request.tool_choice,
        is_parallel=request.parallel_tool_calls,
        reasoning=prompt.reasoning_marks,
        opens_reasoning=prompt.opens_reasoning,
        content=_said_last(request),
        strict=request.strict_tools,
    )
    return AnswerPlan(prompt, grammar)


def _in_channels(
    request: Request, prompt: Prompt, channels: ChannelFormat, *, holds: bool
) -> AnswerPlan:
    """Return how a request is answered by messages in channels.

    There a constraint is of the message that is said last. No mark is of calls alone, so that none
    can be banned.
    """
    calling = None if request.tool_choice == "none" else prompt.calling
    read = replace(prompt, calling=calling)
    if request.constraint is None and not request.tools:
        return AnswerPlan(read, None)
    if not holds:
        if calling is not None:
            _check_unheld(request)
        return AnswerPlan(read, request.constraint)
    grammar = tool_call_grammar(
        calling or Calling(channels, ()),
        request.tool_choice if calling is not None else "none",
        content=_said_last(request),
        strict=request.strict_tools,
    )
    return AnswerPlan(read, grammar)


def _opening(calling: Calling) -> frozenset[int]:
    """Return the token that begins calls, if it is one."""
    form = calling.format
    mark = None if isinstance(form, ChannelFormat) else form.open.token_id
    return frozenset() if mark is None else frozenset({mark})


def _check_unheld(request: Request) -> None:
    """Refuse what only a constraint can give: none can be kept to.

    Raises:
        ConstraintError: the request asks for it.
    """
    if request.tool_choice == "auto" and request.parallel_tool_calls:
        log.debug("no plugin holds calls of tools to their schemas; they are read as they come")
        return
    param = "tool_choice" if request.tool_choice != "auto" else "parallel_tool_calls"
    raise without_compiler(
        f"{param} cannot be kept to: no plugin is in use here that holds an answer to it", param
    )


def without_compiler(problem: str, param: str = "constraint") -> ConstraintError:
    """Return an error about what only a constraint compiler can give."""
    error = ConstraintError(
        problem,
        hint=f"install {GUIDANCE} where vlmkit runs, and leave constraint.use as it is",
    )
    error.param, error.distribution = param, GUIDANCE
    return error


def _said_last(request: Request) -> JsonSchema | Regex | OneOf | None:
    """Return what an answer keeps to in what it says, where it calls nothing.

    Raises:
        ConstraintError: it is a grammar, which cannot be part of another one.
    """
    if request.constraint is None or request.tool_choice not in ("auto", "none"):
        return None
    if isinstance(request.constraint, JsonObject):
        return JsonSchema.of({"type": "object"})
    if isinstance(request.constraint, Lark):
        raise ConstraintError(
            "a grammar can be kept to neither beside tools nor by a model that answers in channels",
            hint="a JSON schema, a pattern or a choice of texts can",
        )
    return request.constraint
