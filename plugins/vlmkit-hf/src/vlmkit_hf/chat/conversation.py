"""Conversations to text, with who wrote what still known.

Decides how messages are put to a chat template, and checks that the template said everything. Does
not tokenize and does not touch pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from vlmkit.errors import CheckpointError, RequestError
from vlmkit.interfaces.chat_format import CallFormat, ChannelFormat
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.chat.channels import channels_of, writes_calls
from vlmkit_hf.chat.messages import Form, Turns, one_each
from vlmkit_hf.chat.tool_call_formats import TOOL, format_of
from vlmkit_hf.templates.reasoning import NAMES, Marks
from vlmkit_hf.templates.sandbox.budget import TemplateTooCostly
from vlmkit_hf.templates.stand_ins import Segment, StandIns
from vlmkit_hf.templates.template import HINT, ChatTemplate

Layout = Callable[[str], str]


class Chat:
    """One model's way to write conversations.

    Args:
        template: its chat template.
        placeholder: what stands for an image in its text; None for a model without eyes.
        is_for_tools: whether tools are always offered with it.

    Attributes:
        channels: how the template writes the messages of an answer; None where it is one.

    Raises:
        CheckpointError: the template cannot write a plain message, or takes too long for it.
    """

    def __init__(
        self,
        template: ChatTemplate,
        placeholder: str | None,
        *,
        is_for_tools: bool = False,
    ) -> None:
        self._template = template
        self._tried_with = [TOOL] if is_for_tools else None
        self._placeholder = placeholder or ""
        # What a model thought before an earlier answer is part of the structure, if the template
        # asks about it: it may drop the thought.
        self._marks = Marks.of(template.mentions)
        self.channels = channels_of(template.mentions)
        self._reasoning_name = next(filter(template.asks_for, NAMES), None)
        likelier, other = Form(placeholder is not None), Form(placeholder is None)
        self._form = likelier if self._fits(likelier) else other
        if self._form is other and not self._fits(other):
            raise CheckpointError(
                f"{template.label} cannot write a plain message of role 'user'", hint=HINT
            )

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        layout: Layout | None = None,
        options: PromptOptions = PLAIN,
    ) -> list[Segment]:
        """Write a conversation and say who wrote each run of it.

        Args:
            messages: the conversation; images become the model's placeholder.
            tools: what the model may call.
            layout: what the family's processor does to the text as a whole.
            options: how it is to be written.

        Raises:
            RequestError: the template refuses the conversation, takes no tools, or leaves out
                something that was said.
        """
        if tools and not self._template.takes_tools:
            raise RequestError("this model's chat template takes no tools", param="tools")
        form: Form | None = self._form
        calling = [number for number, message in enumerate(messages) if _calls(message)]
        if calling and (form := self._form_of_calls) is None:
            raise RequestError(
                "this model's chat template writes no calls of tools",
                param=f"messages[{calling[0]}]",
            )
        segments = self._written(messages, form or self._form, tools, layout, options)
        if options.continue_final_message:
            return _cut_behind(segments, messages[-1].text)
        return segments

    def _written(
        self,
        messages: Sequence[Message],
        form: Form,
        tools: Sequence[Mapping[str, Any]] | None = None,
        layout: Layout | None = None,
        options: PromptOptions = PLAIN,
        *,
        is_probe: bool = False,
    ) -> list[Segment]:
        stand_ins = StandIns()
        turns = Turns(form, self._placeholder, self._marks, self._reasoning_name, stand_ins)
        numbered = list(enumerate(messages))
        written = turns.write(one_each(numbered) if form.has_one_call else numbered)
        hidden_tools = [stand_ins.hide_json(tool) for tool in tools] if tools else None
        rendered = self._template.render(written, hidden_tools, options, is_probe=is_probe)
        if layout is not None:
            rendered = layout(rendered)
        segments = stand_ins.restore(rendered)
        for number, said in turns.said:
            if not stand_ins.is_shown(said):
                raise RequestError(
                    "the model's chat template leaves out what this message of role "
                    f"{messages[number].role!r} says",
                    param=f"messages[{number}]",
                )
        return segments

    def _probed(self, messages: Sequence[Message], form: Form) -> list[Segment]:
        return self._written(messages, form, self._tried_with, is_probe=True)

    @cached_property
    def call_format(self) -> CallFormat | ChannelFormat | None:
        """How the template writes calls of tools; None if that is not known, or it writes none."""
        if not self._template.takes_tools or self._form_of_calls is None:
            return None
        form = self._form_of_calls

        def written(messages: Sequence[Message]) -> Sequence[Segment]:
            return self._written(messages, form, [TOOL], is_probe=True)

        if self.channels is None:
            return format_of(written)
        return self.channels if writes_calls(self.channels, written) else None

    def _fits(self, form: Form) -> bool:
        """Tell whether the template understands contents of a form."""
        probe = 'one\n"two"'  # would look different inside JSON or the repr of a list
        try:
            segments = self._probed([Message.of("user", probe)], form)
        except TemplateTooCostly as error:
            raise CheckpointError(
                f"{self._template.label} takes too long, or too much memory, to write a plain "
                "message of role 'user'",
                hint=HINT,
            ) from error
        except RequestError:
            return False
        said = [segment.text for segment in segments if segment.is_client]
        return said == [probe] if self._tried_with is None else probe in said

    @cached_property
    def _form_of_calls(self) -> Form | None:
        """How the template takes calls of tools; None if it writes none.

        Templates differ in whether they write JSON themselves, in what they take for a turn that
        says nothing, and in whether a turn may call twice, or speak and call.
        """
        forms = (
            self._form._replace(takes_text=takes_text, takes_none=takes_none)
            for takes_text in (False, True)
            for takes_none in (False, True)
        )
        form = next(filter(self._fits_calls, forms), None)
        if form is None or self._fits_turns(form):
            return form
        single = form._replace(has_one_call=True)
        return single if self._fits_turns(single) else form

    def _fits_calls(self, form: Form) -> bool:
        arguments = '{"the key": "one \\"two\\""}'
        call = ToolCallPart("aCall0123", "look_up", arguments)
        turns = [
            Message.of("user", "What?"),
            Message("assistant", (call,)),
            Message("tool", Message.of("tool", "That.").parts, call.id),
        ]
        try:
            segments = self._probed(turns, form)
        except RequestError:
            return False
        if form.takes_text:  # and not once more as JSON
            return arguments in [segment.text for segment in segments if segment.is_client]
        return "{'" not in "".join(segment.text for segment in segments)  # Python's way, not JSON

    def _fits_turns(self, form: Form) -> bool:
        """Tell whether the template writes turns that think, speak and call twice."""
        calls = [
            ToolCallPart(f"aCall012{number}", name, f'{{"key": "{name} it"}}')
            for number, name in enumerate(("look_up", "look_down"))
        ]
        said = Message("assistant", (ReasoningPart("Hm."), TextPart("I look."), *calls))
        results = [Message("tool", (TextPart(f"{call.name} that"),), call.id) for call in calls]
        asked = Message.of("user", "What?")
        turns = [asked, said, *results, Message.of("assistant", "So."), asked]
        try:
            self._probed(turns, form)
        except RequestError:
            return False
        return True


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)


def _cut_behind(segments: Sequence[Segment], text: str) -> list[Segment]:
    """Return what is written up to the end of the last message's text.

    White space at that end stays as far as the template wrote it.

    Raises:
        RequestError: the template does not write that text as it is.
    """
    ends = [number for number, run in enumerate(segments) if run.is_client and run.text.strip()]
    if not ends or not text.rstrip().endswith(segments[ends[-1]].text):
        raise RequestError(
            "the model's chat template does not end with the last message's text",
            param="continue_final_message",
        )
    kept, rest = list(segments[: ends[-1] + 1]), segments[ends[-1] + 1 :]
    space = text[len(text.rstrip()) :]
    if space and rest and rest[0].text.startswith(space):
        kept.append(Segment(space, is_client=True))
    return kept
