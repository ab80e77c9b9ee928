"""Deltas: what a piece of an answer adds to it: text, reasoning, or part of a tool call.

Structs without garbage collection, because one is created for nearly every token. Deltas of one
kind are concatenated in order; the order between kinds has no meaning.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from vlmkit.types.tool_call import ToolCallPart


class TextDelta(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="text"
):
    """More text of the answer."""

    text: str


class ReasoningDelta(
    msgspec.Struct,
    frozen=True,
    gc=False,
    array_like=True,
    forbid_unknown_fields=True,
    tag="reasoning",
):
    """More of the reasoning before the answer."""

    text: str


class ToolCallDelta(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="call"
):
    """More of a tool call.

    Attributes:
        index: the index of the call in the answer.
        id: the id of the call, which the tool's result refers to; only in the call's first delta.
        name: the name of the tool; only in the call's first delta.
        arguments: more of the JSON text of the arguments.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


def text_of(deltas: Iterable[Delta]) -> str:
    """Return the concatenated text, without reasoning."""
    return "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)])


def reasoning_of(deltas: Iterable[Delta]) -> str:
    """Return the concatenated reasoning."""
    return "".join([delta.text for delta in deltas if isinstance(delta, ReasoningDelta)])


def tool_calls_of(deltas: Iterable[Delta]) -> list[ToolCallPart]:
    """Return the tool calls in the order of their indices."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            pieces.setdefault(delta.index, []).append(delta)
    return [
        ToolCallPart(
            "".join(piece.id for piece in call),
            "".join(piece.name for piece in call),
            "".join(piece.arguments for piece in call),
        )
        for _, call in sorted(pieces.items())
    ]
