"""Renders conversations with a chat template, and keeps client text apart from template text.

Detects how the template takes messages and tool calls. Checks that the template rendered the text
of every message. Does not tokenize and does not touch pixels.
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
from vlmkit_hf.chat.channels import find_channels, writes_calls
from vlmkit_hf.chat.messages import MessageForm, MessageWriter, split_calls, with_ordered_results
from vlmkit_hf.chat.tool_call_formats import TOOL, detect_format
from vlmkit_hf.templates.reasoning import REASONING_FIELDS, ReasoningMarks
from vlmkit_hf.templates.sandbox.budget import TemplateTooCostly
from vlmkit_hf.templates.stand_ins import Segment, StandIns
from vlmkit_hf.templates.template import HINT, ChatTemplate

Layout = Callable[[str], str]


class Conversations:
    """Renders the conversations of one model.

    Args:
        template: the chat template.
        placeholder: the text that stands for an image; None if the model takes no images.
        is_for_tools: whether this template is only used with tools.

    Attributes:
        channels: the channels of an answer; None if the template uses no channels.

    Raises:
        CheckpointError: the template cannot render a plain message, or takes too long for it.
    """

    def __init__(
        self,
        template: ChatTemplate,
        placeholder: str | None,
        *,
        is_for_tools: bool = False,
    ) -> None:
        self._template = template
        self._probe_tools = [TOOL] if is_for_tools else None
        self._placeholder = placeholder or ""
        # Reasoning marks in earlier answers are structure, not client text, if the template looks
        # for them: it may drop the reasoning.
        self._marks = ReasoningMarks.of(template.mentions)
        self.channels = find_channels(template.mentions)
        self._reasoning_name = next(filter(template.looks_up, REASONING_FIELDS), None)
        likelier, other = MessageForm(placeholder is not None), MessageForm(placeholder is None)
        self._form = likelier if self._accepts(likelier) else other
        if self._form is other and not self._accepts(other):
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
        """Return a rendered conversation in segments, each by the template or by a client.

        Args:
            messages: the conversation; an image becomes the placeholder.
            tools: the tools that the model may call.
            layout: changes the whole text as the family's processor does; None changes nothing.
            options: the prompt options of the request.

        Raises:
            RequestError: the template refuses the conversation, takes no tools, or leaves out
                a message's text.
        """
        if tools and not self._template.takes_tools:
            raise RequestError("this model's chat template takes no tools", param="tools")
        form: MessageForm | None = self._form
        calling = [number for number, message in enumerate(messages) if _has_calls(message)]
        if calling and (form := self._call_form) is None:
            raise RequestError(
                "this model's chat template writes no tool calls",
                param=f"messages[{calling[0]}]",
            )
        segments = self._render(messages, form or self._form, tools, layout, options)
        if options.continue_final_message:
            return _cut_after(segments, messages[-1].text)
        return segments

    def _render(
        self,
        messages: Sequence[Message],
        form: MessageForm,
        tools: Sequence[Mapping[str, Any]] | None = None,
        layout: Layout | None = None,
        options: PromptOptions = PLAIN,
        *,
        is_probe: bool = False,
    ) -> list[Segment]:
        stand_ins = StandIns()
        writer = MessageWriter(
            form, self._placeholder, self._marks, self._reasoning_name, stand_ins
        )
        numbered = with_ordered_results(enumerate(messages))
        written = writer.write(split_calls(numbered) if form.has_one_call else numbered)
        hidden_tools = [stand_ins.hide_json(tool) for tool in tools] if tools else None
        rendered = self._template.render(written, hidden_tools, options, is_probe=is_probe)
        if layout is not None:
            rendered = layout(rendered)
        segments = stand_ins.restore(rendered)
        for number, text in writer.required:
            if not stand_ins.is_rendered(text):
                raise RequestError(
                    "the model's chat template leaves out what this message of role "
                    f"{messages[number].role!r} says",
                    param=f"messages[{number}]",
                )
        return segments

    def _render_probe(self, messages: Sequence[Message], form: MessageForm) -> list[Segment]:
        return self._render(messages, form, self._probe_tools, is_probe=True)

    @cached_property
    def call_format(self) -> CallFormat | ChannelFormat | None:
        """How the template writes tool calls; None if it writes none, or in an unknown format."""
        if not self._template.takes_tools or self._call_form is None:
            return None
        form = self._call_form

        def written(messages: Sequence[Message]) -> Sequence[Segment]:
            return self._render(messages, form, [TOOL], is_probe=True)

        if self.channels is None:
            return detect_format(written)
        return self.channels if writes_calls(self.channels, written) else None

    def _accepts(self, form: MessageForm) -> bool:
        """Tell whether the template renders message contents of a form."""
        probe = 'one\n"two"'  # JSON and the repr of a list would show it otherwise
        try:
            segments = self._render_probe([Message.of("user", probe)], form)
        except TemplateTooCostly as error:
            raise CheckpointError(
                f"{self._template.label} takes too long, or too much memory, to write a plain "
                "message of role 'user'",
                hint=HINT,
            ) from error
        except RequestError:
            return False
        client_texts = [segment.text for segment in segments if segment.is_client]
        return client_texts == [probe] if self._probe_tools is None else probe in client_texts

    @cached_property
    def _call_form(self) -> MessageForm | None:
        """How the template takes tool calls; None if it renders none.

        Templates differ in whether they write the JSON themselves, and in the content of a message
        that only calls. Some allow neither two calls nor text beside a call.
        """
        forms = (
            self._form._replace(takes_text=takes_text, takes_none=takes_none)
            for takes_text in (False, True)
            for takes_none in (False, True)
        )
        form = next(filter(self._accepts_calls, forms), None)
        if form is None or self._accepts_exchange(form):
            return form
        single = form._replace(has_one_call=True)
        return single if self._accepts_exchange(single) else form

    def _accepts_calls(self, form: MessageForm) -> bool:
        arguments = '{"the key": "one \\"two\\""}'
        call = ToolCallPart("aCall0123", "lookup", arguments)
        exchange = [
            Message.of("user", "What?"),
            Message("assistant", (call,)),
            Message("tool", Message.of("tool", "That.").parts, call.id),
        ]
        try:
            segments = self._render_probe(exchange, form)
        except RequestError:
            return False
        if form.takes_text:  # and not encoded as JSON a second time
            return arguments in [segment.text for segment in segments if segment.is_client]
        return "{'" not in "".join(segment.text for segment in segments)  # a Python repr, not JSON

    def _accepts_exchange(self, form: MessageForm) -> bool:
        """Tell whether the template renders a message with reasoning, text and two calls."""
        calls = [
            ToolCallPart(f"aCall012{number}", name, f'{{"key": "{name} it"}}')
            for number, name in enumerate(("lookup", "look_down"))
        ]
        answer = Message("assistant", (ReasoningPart("Hm."), TextPart("I look."), *calls))
        results = [Message("tool", (TextPart(f"{call.name} that"),), call.id) for call in calls]
        asked = Message.of("user", "What?")
        exchange = [asked, answer, *results, Message.of("assistant", "So."), asked]
        try:
            self._render_probe(exchange, form)
        except RequestError:
            return False
        return True


def _has_calls(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)


def _cut_after(segments: Sequence[Segment], text: str) -> list[Segment]:
    """Return the segments up to the end of the last message's text.

    White space at the end of that text stays if the template rendered it.

    Raises:
        RequestError: the template does not render that text unchanged.
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
