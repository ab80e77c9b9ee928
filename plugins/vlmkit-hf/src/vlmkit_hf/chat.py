"""Conversations to text, with who wrote what still known.

Decides how messages are put to a chat template (contents as text or as lists of parts) and checks
that the template said everything. Does not tokenize and does not touch pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vlmkit.errors import CheckpointError, RequestError
from vlmkit.message import Message, TextPart
from vlmkit_hf.sentinel import Segment, StandIns
from vlmkit_hf.template import ChatTemplate

Form = Literal["parts", "text"]
Layout = Callable[[str], str]

END_OF_THOUGHT = "</think>"
START_OF_THOUGHT = "<think>"


class Chat:
    """One model's way to write conversations.

    Args:
        template: its chat template.
        placeholder: what stands for an image in its text; None for a model without eyes.
        owner: the model's name, for errors.

    Raises:
        CheckpointError: the template cannot write a plain message.
    """

    def __init__(self, template: ChatTemplate, placeholder: str | None, owner: str) -> None:
        self._template = template
        self._placeholder = placeholder or ""
        # What a model thought before an earlier answer is part of the structure, if the template
        # asks about it: it may drop the thought.
        self._knows_thoughts = template.mentions(END_OF_THOUGHT)
        self._form: Form = "parts" if placeholder else "text"
        if not self._fits():
            self._form = "text" if placeholder else "parts"
            if not self._fits():
                raise CheckpointError(
                    f"the chat template of {owner!r} cannot write a plain message of role 'user'",
                    hint='give the model another one: tokenizer.chat_template = "PATH"',
                )

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        layout: Layout | None = None,
    ) -> list[Segment]:
        """Write a conversation and say who wrote each run of it.

        Args:
            messages: the conversation; images become the model's placeholder.
            tools: what the model may call.
            layout: what the family's processor does to the text as a whole.

        Raises:
            RequestError: the template refuses the conversation, takes no tools, or leaves out
                something that was said.
        """
        if tools and not self._template.takes_tools:
            raise RequestError("this model's chat template takes no tools", param="tools")
        stand_ins = StandIns()
        written = [self._message(message, stand_ins) for message in messages]
        hidden_tools = [stand_ins.hide_json(tool) for tool in tools] if tools else None
        rendered = self._template.render(written, hidden_tools)
        if layout is not None:
            rendered = layout(rendered)
        segments = stand_ins.restore(rendered)
        for number, message in enumerate(messages):
            self._check_said(number, message, stand_ins)
        return segments

    def _message(self, message: Message, stand_ins: StandIns) -> dict[str, Any]:
        hide: Callable[[str], str] = stand_ins.hide
        if message.role == "assistant" and self._knows_thoughts:
            hide = _hide_around_thought(stand_ins)
        if self._form == "text":
            content: Any = "".join(
                hide(part.text) if isinstance(part, TextPart) else self._placeholder
                for part in message.parts
            )
        else:
            content = [
                {"type": "text", "text": hide(part.text)}
                if isinstance(part, TextPart)
                else {"type": "image"}
                for part in message.parts
            ]
        return {"role": message.role, "content": content}

    def _check_said(self, number: int, message: Message, stand_ins: StandIns) -> None:
        """Refuse a conversation of which the template silently left something out."""
        for part in message.parts:
            if not isinstance(part, TextPart):
                continue
            said = part.text
            if message.role == "assistant" and self._knows_thoughts:
                said = _without_thought(said)
            if not stand_ins.is_shown(said):
                raise RequestError(
                    "the model's chat template leaves out what this message of role "
                    f"{message.role!r} says",
                    param=f"messages[{number}]",
                )

    def _fits(self) -> bool:
        """Tell whether the template understands the present form of contents."""
        probe = 'one\n"two"'  # would look different inside JSON or the repr of a list
        try:
            segments = self.segments([Message.of("user", probe)])
        except RequestError:
            return False
        return [segment.text for segment in segments if segment.is_client] == [probe]


def _hide_around_thought(stand_ins: StandIns) -> Callable[[str], str]:
    """Return a ``hide`` that leaves the tags of a leading thought as they are."""

    def hide(text: str) -> str:
        thought, tag, said = text.partition(END_OF_THOUGHT)
        if not tag:
            return stand_ins.hide(text)
        start = START_OF_THOUGHT if thought.lstrip().startswith(START_OF_THOUGHT) else ""
        thought = thought.lstrip().removeprefix(start) if start else thought
        return f"{start}{stand_ins.hide(thought)}{tag}{stand_ins.hide(said)}"

    return hide


def _without_thought(text: str) -> str:
    thought, tag, said = text.partition(END_OF_THOUGHT)
    return said if tag else thought
