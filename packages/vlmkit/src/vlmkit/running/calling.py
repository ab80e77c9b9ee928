"""What an answer to a conversation with tools keeps to, and how it is read.

Whether it may call them, must or must not, and what else it was asked to keep to, come to one
constraint and one prompt. Compiles nothing.
"""

import logging
from dataclasses import replace
from typing import NamedTuple

from vlmkit.ask.constraint import Constraint, JsonObject, JsonSchema
from vlmkit.ask.request import Request
from vlmkit.errors import ConstraintError, RequestError
from vlmkit.kit.call_grammar import call_grammar
from vlmkit.seams.prompt import Prompt

log = logging.getLogger(__name__)


class Answering(NamedTuple):
    """How a request is answered.

    Attributes:
        prompt: as its answer is read.
        constraint: what the answer keeps to.
        banned_ids: tokens that it must not have, besides those that none has.
    """

    prompt: Prompt
    constraint: Constraint | None
    banned_ids: frozenset[int] = frozenset()


def answering(request: Request, prompt: Prompt, *, holds: bool) -> Answering:
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
            hint="vlmkit.kit.call_formats has the ways that are known",
        )
    if calling is None or request.tool_choice == "none":
        mark = None if calling is None else calling.format.open.token_id
        banned = frozenset() if mark is None else frozenset({mark})
        # An answer within a constraint is text from its first token.
        opens = prompt.opens_reasoning and request.constraint is None
        read = replace(prompt, calling=None, opens_reasoning=opens)
        return Answering(read, request.constraint, banned)
    if not holds:
        if request.tool_choice != "auto" or not request.parallel_tool_calls:
            param = "tool_choice" if request.tool_choice != "auto" else "parallel_tool_calls"
            error = ConstraintError(
                f"{param} cannot be kept to: no plugin is in use here that holds an answer to it",
                hint="pip install vlmkit-guidance, and leave constraint.use as it is",
            )
            error.param = param
            raise error
        log.debug("no plugin holds calls of tools to their schemas; they are read as they come")
        return Answering(prompt, request.constraint)
    grammar = call_grammar(
        calling,
        request.tool_choice,
        is_parallel=request.parallel_tool_calls,
        opens_reasoning=prompt.opens_reasoning,
        content=_content(request),
    )
    return Answering(prompt, grammar)


def _content(request: Request) -> JsonSchema | None:
    """Return what an answer without calls keeps to."""
    if request.constraint is None or request.tool_choice != "auto":
        return None
    if isinstance(request.constraint, JsonObject):
        return JsonSchema.of({"type": "object"})
    if isinstance(request.constraint, JsonSchema):
        return request.constraint
    raise ConstraintError("tools and a constraint that is no JSON schema exclude each other")
