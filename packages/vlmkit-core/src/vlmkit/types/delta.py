"""What one piece of an answer adds to it: text, reasoning, or part of a call of a tool.

One is made for nearly every token, so these are the cheapest values there are. Pieces of one kind
are joined in the order in which they come; between kinds, order says nothing.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from vlmkit.types.tool_call import ToolCallPart


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More of what the model says."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thinks before it says anything."""

    text: str


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """More of a call of a tool.

    Attributes:
        index: which of the answer's calls.
        id: how the tool's result will name the call; with the first piece of a call alone.
        name: of the tool; with the first piece alone.
        arguments: more of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


def text_of(deltas: Iterable[Delta]) -> str:
    """Return what is said, without what is thought."""
    return "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)])


def reasoning_of(deltas: Iterable[Delta]) -> str:
    """Return what is thought."""
    return "".join([delta.text for delta in deltas if isinstance(delta, ReasoningDelta)])


def tool_calls_of(deltas: Iterable[Delta]) -> list[ToolCallPart]:
    """Return the calls of tools, in the order of their indices."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            pieces.setdefault(delta.index, []).append(delta)
    return [
        ToolCallPart(
            "".join(piece.id for piece in own),
            "".join(piece.name for piece in own),
            "".join(piece.arguments for piece in own),
        )
        for _, own in sorted(pieces.items())
    ]
