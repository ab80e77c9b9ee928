"""The plan of an answer to a conversation with tools: its constraint, and how it is parsed.

The tool choice and the constraint of a request are combined into one constraint and one prompt. It
compiles nothing.
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
"""The distribution with a constraint compiler."""


class AnswerPlan(NamedTuple):
    """How a request is answered.

    Attributes:
        prompt: the prompt, which says how the answer is parsed.
        constraint: the constraint of the answer, if any.
        banned_ids: tokens that this answer must not have, beside those that no answer may have.
    """

    prompt: Prompt
    constraint: Constraint | None
    banned_ids: frozenset[int] = frozenset()


def plan_answer(request: Request, prompt: Prompt, *, can_constrain: bool) -> AnswerPlan:
    """Return how a request is answered.

    Args:
        request: the request.
        prompt: its prompt, from the tokenizer.
        can_constrain: whether there is a constraint compiler.

    Raises:
        RequestError: the format of this model's tool calls is unknown, or the request contradicts
            itself.
        ConstraintError: the request needs a constraint compiler, and there is none.
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
        return _in_channels(request, prompt, prompt.channels, can_constrain=can_constrain)
    if calling is None or request.tool_choice == "none":
        banned = frozenset() if calling is None else _opening(calling)
        # A constrained answer is text from its first token, without reasoning.
        opens = prompt.opens_reasoning and request.constraint is None
        read = replace(prompt, calling=None, opens_reasoning=opens)
        return AnswerPlan(read, request.constraint, banned)
    if not can_constrain:
        _check_without_compiler(request)
        return AnswerPlan(prompt, request.constraint)
    grammar = tool_call_grammar(
        calling,
        request.tool_choice,
        is_parallel=request.parallel_tool_calls,
        reasoning=prompt.reasoning_marks,
        opens_reasoning=prompt.opens_reasoning,
        content=_final_constraint(request),
        strict=request.strict_tools,
    )
    return AnswerPlan(prompt, grammar)


def _in_channels(
    request: Request, prompt: Prompt, channels: ChannelFormat, *, can_constrain: bool
) -> AnswerPlan:
    """Return how a request is answered by messages in channels.

    There the constraint applies to the last message. No mark is used by calls alone, so no token
    can be banned to prevent calls.
    """
    calling = None if request.tool_choice == "none" else prompt.calling
    read = replace(prompt, calling=calling)
    if request.constraint is None and not request.tools:
        return AnswerPlan(read, None)
    if not can_constrain:
        if calling is not None:
            _check_without_compiler(request)
        return AnswerPlan(read, request.constraint)
    grammar = tool_call_grammar(
        calling or Calling(channels, ()),
        request.tool_choice if calling is not None else "none",
        content=_final_constraint(request),
        strict=request.strict_tools,
    )
    return AnswerPlan(read, grammar)


def _opening(calling: Calling) -> frozenset[int]:
    """Return the token that begins calls, if the mark is a single token."""
    form = calling.format
    mark = None if isinstance(form, ChannelFormat) else form.open.token_id
    return frozenset() if mark is None else frozenset({mark})


def _check_without_compiler(request: Request) -> None:
    """Refuse a tool choice that cannot be enforced without a constraint compiler.

    Raises:
        ConstraintError: the request asks for one.
    """
    if request.tool_choice == "auto" and request.parallel_tool_calls:
        log.debug("no constraint compiler is in use: the schemas of tool calls are not enforced")
        return
    param = "tool_choice" if request.tool_choice != "auto" else "parallel_tool_calls"
    raise without_compiler(
        f"{param} cannot be kept to: no plugin is in use here that holds an answer to it",
        param,
    )


def without_compiler(problem: str, param: str = "constraint") -> ConstraintError:
    """Return the error of a request that needs a constraint compiler."""
    error = ConstraintError(
        problem,
        hint=f"install {GUIDANCE} where vlmkit runs, and leave constraint.use as it is",
    )
    error.param, error.distribution = param, GUIDANCE
    return error


def _final_constraint(request: Request) -> JsonSchema | Regex | OneOf | None:
    """Return the constraint on the text of an answer that calls no tool.

    Raises:
        ConstraintError: it is a grammar, which cannot be part of another grammar.
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
