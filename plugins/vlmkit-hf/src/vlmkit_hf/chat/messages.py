"""Messages as a chat template takes them: dictionaries by the names that templates ask for.

Every string of a client is hidden. Says what has to be in the rendered text, and does not render.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vlmkit.errors import RequestError
from vlmkit.types.message import ImagePart, Message, Part, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.templates.reasoning import Marks
from vlmkit_hf.templates.stand_ins import StandIns

Numbered = tuple[int, Message]


class Form(NamedTuple):
    """What a template expects where templates differ.

    Attributes:
        has_parts: whether a message's content is a list of parts, or else a text.
        takes_text: whether arguments of calls are JSON text, or else an object.
        takes_none: whether the content of a turn that only calls is none, or else an empty one.
        has_one_call: whether a turn calls once at most, and says nothing then.
    """

    has_parts: bool
    takes_text: bool = False
    takes_none: bool = False
    has_one_call: bool = False


class Turns:
    """The messages of one prompt.

    Args:
        form: what the template expects.
        placeholder: what stands for an image in a content that is text.
        marks: of thoughts, where the template asks for them in what was said.
        reasoning_name: how the template calls what was thought; None if it does not ask.
        stand_ins: hide what the client wrote.
    """

    def __init__(
        self,
        form: Form,
        placeholder: str,
        marks: Marks | None,
        reasoning_name: str | None,
        stand_ins: StandIns,
    ) -> None:
        self._form = form
        self._placeholder = placeholder
        self._marks = marks
        self._reasoning_name = reasoning_name
        self._stand_ins = stand_ins
        self._tools: dict[str, str] = {}
        self.said: list[tuple[int, str]] = []

    def write(self, messages: Iterable[tuple[int, Message]]) -> list[dict[str, Any]]:
        """Return numbered messages; ``said`` has what of which must be in the rendered text.

        Raises:
            RequestError: a call's arguments are not the JSON text of an object.
        """
        return [self._turn(number, message) for number, message in messages]

    def _turn(self, number: int, message: Message) -> dict[str, Any]:
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        shown = [part for part in message.parts if isinstance(part, TextPart | ImagePart)]
        turn = {"role": message.role, "content": self._content(number, message.role, shown)}
        if calls:
            try:
                turn["tool_calls"] = [self._call(number, call) for call in calls]
            except RequestError as error:
                error.param = f"messages[{number}]"
                raise
            if not shown and self._form.takes_none:
                turn["content"] = None
        if message.call_id is not None:
            turn["tool_call_id"] = self._stand_ins.hide_id(message.call_id)
            if message.call_id in self._tools:
                turn["name"] = self._stand_ins.hide(self._tools[message.call_id])
        thought = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
        if thought and self._reasoning_name is not None:
            turn[self._reasoning_name] = self._stand_ins.hide(thought)
        return turn

    def _content(self, number: int, role: str, shown: Sequence[TextPart | ImagePart]) -> Any:
        hide: Callable[[str], str] = self._stand_ins.hide
        marks = self._marks if role == "assistant" else None
        if marks is not None:
            hide = _hide_around_thought(self._stand_ins, marks)
        texts = [part.text for part in shown if isinstance(part, TextPart)]
        self.said += [(number, marks.behind(text) if marks else text) for text in texts]
        if not self._form.has_parts:
            return "".join(
                hide(part.text) if isinstance(part, TextPart) else self._placeholder
                for part in shown
            )
        return [
            {"type": "text", "text": hide(part.text)}
            if isinstance(part, TextPart)
            else {"type": "image"}
            for part in shown
        ]

    def _call(self, number: int, call: ToolCallPart) -> dict[str, Any]:
        arguments: Any = call.parsed()
        self._tools[call.id] = call.name
        self.said.append((number, call.name))
        if self._form.takes_text:
            text = call.arguments.strip() or "{}"
            self.said.append((number, text))
            arguments = self._stand_ins.hide(text)
        else:
            self.said += [(number, text) for text in _strings(arguments)]
            arguments = self._stand_ins.hide_json(arguments, is_schema=False)
        function = {"name": self._stand_ins.hide(call.name), "arguments": arguments}
        return {"id": self._stand_ins.hide_id(call.id), "type": "function", "function": function}


def _hide_around_thought(stand_ins: StandIns, marks: Marks) -> Callable[[str], str]:
    """Return a ``hide`` that leaves the marks of a leading thought as they are."""

    def hide(text: str) -> str:
        thought, mark, said = text.partition(marks.end)
        if not mark:
            return stand_ins.hide(text)
        start = marks.start if thought.lstrip().startswith(marks.start) else ""
        thought = thought.lstrip().removeprefix(start) if start else thought
        return f"{start}{stand_ins.hide(thought)}{mark}{stand_ins.hide(said)}"

    return hide


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


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
