"""Grammars of answers in the Harmony format of GPT-OSS: messages in channels.

Request preparation builds one for each request with tools or a constraint, through
:mod:`vlmkit.formats.tool_call_grammar`. The ``ChannelFormat`` of the model supplies delimiters and
channel names.

Reasoning is unconstrained, and so is the text unless it has a constraint. A call matches its tool's
schema and ends the answer. The grammar does not include the token that ends the answer.
"""

from collections.abc import Collection, Mapping, Sequence as Seq
from typing import Any

from vlmkit.formats.lark_rules import LarkRules, literal, within_slashes
from vlmkit.formats.tool_schemas import ToolSchemas
from vlmkit.interfaces.chat_format import ChannelFormat
from vlmkit.types.constraint import JsonSchema, Lark, OneOf, Regex
from vlmkit.types.tool_choice import NamedTool, ToolChoice, tool_name


def harmony_grammar(
    form: ChannelFormat,
    tools: Seq[Mapping[str, Any]],
    choice: ToolChoice | NamedTool,
    *,
    content: JsonSchema | Regex | OneOf | None = None,
    strict: Collection[str] = (),
) -> Lark:
    """Return the grammar of an answer, starting after the prompt's part of the first message.

    Args:
        form: the format of messages; its delimiters are special tokens.
        tools: definitions of the tools that the answer may call.
        choice: whether the answer may or must call tools.
        content: the constraint of the last message of an answer without calls; None for none.
        strict: names of tools whose schemas must be enforced in full.

    Raises:
        ConstraintError: a strict schema is too large.
    """
    grammar = _Grammar(form, strict)
    rules = grammar.rules
    rules.add("TEXT: /(?s:.+)/")
    if form.opens == form.said:  # the prompt has the last message's header: only its text follows
        return rules.grammar(grammar.content(content))
    may_end_as_text = isinstance(choice, str) and choice != "required"
    earlier_message = f"{grammar.header_end(form.reasoning)} TEXT?"
    if may_end_as_text and content is None:  # with a constraint, only the last message has text
        preamble = f"{grammar.header_end(form.calls)} TEXT?"
        earlier_message = f"({earlier_message} | {preamble})"
    last_messages = []
    if may_end_as_text:
        last_messages.append(f"{grammar.header_end(form.said)} {grammar.content(content)}")
    if choice != "none":
        last_messages += [
            grammar.call(number, tool)
            for number, tool in enumerate(tools)
            if not isinstance(choice, NamedTool) or tool_name(tool) == choice.name
        ]
    rules.add(f"next: {rules.mark('end', form.end)} {grammar.header_start()}")
    rules.add(f"last: {' | '.join(last_messages)}")
    opened_message = "TEXT? next " if form.opens else ""  # the prompt has its header
    return rules.grammar(f"{opened_message}({earlier_message} next)* last")


class _Grammar:
    """Builds the rules of one channel format."""

    def __init__(self, form: ChannelFormat, strict: Collection[str]) -> None:
        self.rules = LarkRules()
        self._schemas = ToolSchemas(self.rules, strict)
        self._form = form
        self._channel_mark = self.rules.mark("channel", form.channel)
        self._body_mark = self.rules.mark("body", form.body)

    def header_start(self) -> str:
        """Return an expression for the start of a header; the prompt has the first message's."""
        return f"{self.rules.mark('begin', self._form.start)} {literal(self._form.role)}"

    def header_end(self, channel_name: str) -> str:
        """Return an expression for the rest of a header, without a recipient."""
        return f"{self._channel_mark} {literal(channel_name)} {self._body_mark}"

    def content(self, content: JsonSchema | Regex | OneOf | None) -> str:
        """Return an expression for the text of the last message."""
        if content is None:
            return "TEXT?"
        if isinstance(content, JsonSchema):
            return self.rules.schema("content", content)
        if isinstance(content, Regex):
            self.rules.add(f"CONTENT: /(?:{within_slashes(content.pattern)})/")
        else:
            self.rules.add(f"CONTENT: {' | '.join(map(literal, content.texts))}")
        return "CONTENT"

    def call(self, number: int, tool: Mapping[str, Any]) -> str:
        """Return an expression for a call: the rest of its header, and its arguments.

        Models write the recipient before or after the channel, and may omit the content type.
        """
        form = self._form
        recipient = form.recipient + form.namespace + tool_name(tool)  # such as " to=functions.add"
        content_type_mark = self.rules.mark("kind", form.kind)
        content_type = (
            f'({literal(" " + form.json)} | " "? {content_type_mark} {literal(form.json)})?'
        )
        arguments = self._schemas.arguments(f"arguments_{number}", tool)
        recipient_first = f"{literal(recipient)} {self._channel_mark} {literal(form.calls)}"
        channel_first = f"{self._channel_mark} {literal(form.calls + recipient)}"
        return f"({recipient_first} | {channel_first}) {content_type} {self._body_mark} {arguments}"
