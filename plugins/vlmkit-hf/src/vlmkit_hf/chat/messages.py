"""Messages as a chat template takes them: dictionaries with the field names of templates.

Hides every client string, and records the texts that must be rendered. Does not render.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, NamedTuple

from vlmkit.errors import RequestError
from vlmkit.types.message import ImagePart, Message, Part, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.templates.reasoning import ReasoningMarks
from vlmkit_hf.templates.stand_ins import StandIns

Numbered = tuple[int, Message]


class MessageForm(NamedTuple):
    """The points in which templates expect different messages.

    Attributes:
        has_parts: whether a message's content is a list of parts; otherwise it is a text.
        takes_text: whether arguments of calls are JSON text; otherwise they are an object.
        takes_none: whether a message that only calls has the content None; otherwise it is empty.
        has_one_call: whether a message has at most one call, and then no text.
    """

    has_parts: bool
    takes_text: bool = False
    takes_none: bool = False
    has_one_call: bool = False


class MessageWriter:
    """Writes the messages of one prompt.

    Args:
        form: the form of messages that the template expects.
        placeholder: the text that stands for an image in a text content.
        marks: of reasoning, if the template looks for them in earlier answers.
        reasoning_name: the template's field for reasoning; None if it has none.
        stand_ins: replaces client text.

    Attributes:
        required: the texts that must be in the rendered text, each with its message's number.
    """

    def __init__(
        self,
        form: MessageForm,
        placeholder: str,
        marks: ReasoningMarks | None,
        reasoning_name: str | None,
        stand_ins: StandIns,
    ) -> None:
        self._form = form
        self._placeholder = placeholder
        self._marks = marks
        self._reasoning_name = reasoning_name
        self._stand_ins = stand_ins
        self._tools: dict[str, str] = {}
        self.required: list[tuple[int, str]] = []

    def write(self, messages: Iterable[tuple[int, Message]]) -> list[dict[str, Any]]:
        """Return numbered messages as dictionaries, and extend ``required``.

        Raises:
            RequestError: the arguments of a call are not the JSON text of an object.
        """
        return [self._message(number, message) for number, message in messages]

    def _message(self, number: int, message: Message) -> dict[str, Any]:
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        shown = [part for part in message.parts if isinstance(part, TextPart | ImagePart)]
        fields = {"role": message.role, "content": self._content(number, message.role, shown)}
        if calls:
            try:
                fields["tool_calls"] = [self._call(number, call) for call in calls]
            except RequestError as error:
                error.param = f"messages[{number}]"
                raise
            if not shown and self._form.takes_none:
                fields["content"] = None
        if message.call_id is not None:
            fields["tool_call_id"] = self._stand_ins.hide_id(message.call_id)
            if message.call_id in self._tools:
                fields["name"] = self._stand_ins.hide(self._tools[message.call_id])
        thought = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
        if thought and self._reasoning_name is not None:
            fields[self._reasoning_name] = self._stand_ins.hide(thought)
        return fields

    def _content(self, number: int, role: str, shown: Sequence[TextPart | ImagePart]) -> Any:
        hide: Callable[[str], str] = self._stand_ins.hide
        marks = self._marks if role == "assistant" else None
        if marks is not None:
            hide = _hide_around_reasoning(self._stand_ins, marks)
        texts = [part.text for part in shown if isinstance(part, TextPart)]
        self.required += [(number, marks.answer_of(text) if marks else text) for text in texts]
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
        self.required.append((number, call.name))
        if self._form.takes_text:
            text = call.arguments.strip() or "{}"
            self.required.append((number, text))
            arguments = self._stand_ins.hide(text)
        else:
            self.required += [(number, text) for text in _strings(arguments)]
            arguments = self._stand_ins.hide_json(arguments, is_schema=False)
        function = {"name": self._stand_ins.hide(call.name), "arguments": arguments}
        return {"id": self._stand_ins.hide_id(call.id), "type": "function", "function": function}


def _hide_around_reasoning(stand_ins: StandIns, marks: ReasoningMarks) -> Callable[[str], str]:
    """Return a ``hide`` that keeps the marks of leading reasoning readable."""

    def hide(text: str) -> str:
        thought, mark, answer = text.partition(marks.end)
        if not mark:
            return stand_ins.hide(text)
        start = marks.start if thought.lstrip().startswith(marks.start) else ""
        thought = thought.lstrip().removeprefix(start) if start else thought
        return f"{start}{stand_ins.hide(thought)}{mark}{stand_ins.hide(answer)}"

    return hide


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def with_ordered_results(messages: Iterable[Numbered]) -> list[Numbered]:
    """Return messages with the results of parallel calls in the order of the calls.

    Many templates write no ids of calls. Images keep their order, as slots must: results stay as
    they are where ordering them would move an image before another.
    """
    ordered: list[Numbered] = []
    places: dict[str | None, int] = {}  # of calls, by their ids

    def order(numbered: Numbered) -> int:
        return places.get(numbered[1].call_id, len(places))

    for is_result, run in groupby(messages, lambda numbered: numbered[1].role == "tool"):
        found = list(run)
        by_call = sorted(found, key=order)
        ordered += by_call if is_result and _keeps_images(found, by_call) else found
        ids = [part.id for part in found[-1][1].parts if isinstance(part, ToolCallPart)]
        places = {call_id: place for place, call_id in enumerate(ids)}
    return ordered


def _keeps_images(messages: Sequence[Numbered], moved: Sequence[Numbered]) -> bool:
    """Return whether messages with images have the same order in both sequences."""
    one, other = (
        [
            number
            for number, message in numbered
            if any(isinstance(part, ImagePart) for part in message.parts)
        ]
        for numbered in (messages, moved)
    )
    return one == other


def split_calls(messages: Sequence[Numbered]) -> Iterator[Numbered]:
    """Yield messages with either one call, followed by its results, or text.

    The reasoning of a message stays with its first call.

    Raises:
        RequestError: results with images are not in the order of their calls, as slots must be.
    """
    start = 0
    while start < len(messages):
        number, message = messages[start]
        start += 1
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        others = tuple(part for part in message.parts if not isinstance(part, ToolCallPart))
        texts = tuple(part for part in others if isinstance(part, TextPart))
        if not calls or (len(calls) == 1 and not any(part.text.strip() for part in texts)):
            yield number, message
            continue
        stop = start
        while stop < len(messages) and messages[stop][1].role == "tool":
            stop += 1
        if any(part.text.strip() for part in texts):
            yield number, replace(message, parts=texts)
        thought = tuple(part for part in others if not isinstance(part, TextPart))
        yield from _calls_with_results(number, message, thought, calls, messages[start:stop])
        start = stop


def _calls_with_results(
    number: int,
    message: Message,
    thought: tuple[Part, ...],
    calls: Sequence[ToolCallPart],
    results: Sequence[Numbered],
) -> Iterator[Numbered]:
    """Yield calls, each with its results; results of unknown calls come last."""
    by_call: dict[str | None, list[Numbered]] = {call.id: [] for call in calls}
    rest: list[Numbered] = []
    for result in results:
        by_call.get(result[1].call_id, rest).append(result)
    if not _keeps_images(results, [*chain(*by_call.values()), *rest]):
        raise RequestError(
            "this model's chat template takes results with images in the order of their calls only",
            param=f"messages[{results[0][0]}]",
        )
    for call in calls:
        yield number, replace(message, parts=(*thought, call))
        thought = ()
        yield from by_call.pop(call.id, [])
    yield from rest
