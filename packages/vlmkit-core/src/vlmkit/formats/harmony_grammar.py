"""Grammars of answers that consist of messages in channels, built from their ``ChannelFormat``.

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
        form: the format of messages; its delimiters are tokens.
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
    if form.opens == form.said:
        return rules.grammar(grammar.content(content))
    may_say = isinstance(choice, str) and choice != "required"
    before = f"{grammar.head(form.reasoning)} TEXT?"
    if may_say and content is None:  # earlier text would be part of the constrained content
        before = f"({before} | {grammar.head(form.calls)} TEXT?)"
    ways = []
    if may_say:
        ways.append(f"{grammar.head(form.said)} {grammar.content(content)}")
    if choice != "none":
        ways += [
            grammar.call(number, tool)
            for number, tool in enumerate(tools)
            if not isinstance(choice, NamedTool) or tool_name(tool) == choice.name
        ]
    rules.add(f"next: {rules.mark('end', form.end)} {grammar.start()}")
    rules.add(f"way: {' | '.join(ways)}")
    begun = "TEXT? next " if form.opens else ""
    return rules.grammar(f"{begun}({before} next)* way")


class _Grammar:
    """Builds the rules of one channel format."""

    def __init__(self, form: ChannelFormat, strict: Collection[str]) -> None:
        self.rules = LarkRules()
        self._schemas = ToolSchemas(self.rules, strict)
        self._form = form
        self._channel = self.rules.mark("channel", form.channel)
        self._body = self.rules.mark("body", form.body)

    def start(self) -> str:
        """Return an expression for the start of another message's header."""
        return f"{self.rules.mark('begin', self._form.start)} {literal(self._form.role)}"

    def head(self, channel: str) -> str:
        """Return an expression for the rest of a header."""
        return f"{self._channel} {literal(channel)} {self._body}"

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
        """Return an expression for a call, with its recipient before or after the channel."""
        form = self._form
        recipient = form.recipient + form.namespace + tool_name(tool)
        kind = f'({literal(" " + form.json)} | " "? {self.rules.mark("kind", form.kind)}'
        kind = f"{kind} {literal(form.json)})?"
        arguments = self._schemas.arguments(f"arguments_{number}", tool)
        behind = f"{kind} {self._body} {arguments}"
        first = f"{literal(recipient)} {self._channel} {literal(form.calls)}"
        return f"({first} | {self._channel} {literal(form.calls + recipient)}) {behind}"
