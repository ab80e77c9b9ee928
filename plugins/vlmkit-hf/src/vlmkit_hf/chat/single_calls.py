"""Turns of which each calls once at most, for chat templates that write no others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vlmkit.types.message import Message, Part, TextPart
from vlmkit.types.tool_call import ToolCallPart

Numbered = tuple[int, Message]


def one_each(messages: Sequence[Numbered]) -> Iterator[Numbered]:
    """Yield messages in which a turn calls once, followed by its results, or speaks.

    What such a turn thinks stays with its first call.
    """
    start = 0
    while start < len(messages):
        number, message = messages[start]
        start += 1
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        others = tuple(part for part in message.parts if not isinstance(part, ToolCallPart))
        said = tuple(part for part in others if isinstance(part, TextPart))
        if not calls or (len(calls) == 1 and not any(part.text.strip() for part in said)):
            yield number, message
            continue
        stop = start
        while stop < len(messages) and messages[stop][1].role == "tool":
            stop += 1
        if any(part.text.strip() for part in said):
            yield number, replace(message, parts=said)
        thought = tuple(part for part in others if not isinstance(part, TextPart))
        yield from _answered(number, message, thought, calls, messages[start:stop])
        start = stop


def _answered(
    number: int,
    message: Message,
    thought: tuple[Part, ...],
    calls: Sequence[ToolCallPart],
    results: Sequence[Numbered],
) -> Iterator[Numbered]:
    """Yield calls, each with its results; those of no call come last."""
    by_call: dict[str | None, list[Numbered]] = {call.id: [] for call in calls}
    rest: list[Numbered] = []
    for result in results:
        by_call.get(result[1].call_id, rest).append(result)
    for call in calls:
        yield number, replace(message, parts=(*thought, call))
        thought = ()
        yield from by_call.pop(call.id, [])
    yield from rest
