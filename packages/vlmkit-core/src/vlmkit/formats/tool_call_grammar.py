"""Grammars of answers with tool calls, built from the format of the calls.

Text is unconstrained up to the delimiter of a call, and reasoning up to its end. A call matches its
tool's schema.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vlmkit.errors import ConstraintError
from vlmkit.formats.harmony_grammar import harmony_grammar
from vlmkit.formats.lark_rules import LarkRules, literal, pattern, quoted
from vlmkit.formats.partial_tool_call import is_text
from vlmkit.formats.tool_schemas import ToolSchemas
from vlmkit.interfaces.chat_format import (
    CallFormat,
    Calling,
    ChannelFormat,
    JsonCall,
    Mark,
    NamedCall,
    TaggedCall,
)
from vlmkit.types.constraint import JsonSchema, Lark, OneOf, Regex
from vlmkit.types.tool_choice import NamedTool, ToolChoice, tool_name, tool_schema


def tool_call_grammar(
    calling: Calling,
    choice: ToolChoice | NamedTool,
    *,
    is_parallel: bool = True,
    reasoning: tuple[Mark, Mark] | None = None,
    opens_reasoning: bool = False,
    content: JsonSchema | Regex | OneOf | None = None,
    strict: Collection[str] = (),
) -> Lark:
    """Return the grammar of an answer to a conversation with tools.

    Args:
        calling: the tools that the answer may call, and the format of calls.
        choice: whether the answer may or must call tools.
        is_parallel: whether it may call more than once; has no effect where a call ends an answer.
        reasoning: the delimiters of reasoning; None for a model without reasoning, or with a
            channel for it.
        opens_reasoning: whether the prompt opened the reasoning; ignored for channels.
        content: the constraint of an answer without calls; None for none.
        strict: names of tools whose schemas must be enforced in full, besides those whose
            definitions say so. The grammar lists what it does not enforce of other schemas.

    Raises:
        ConstraintError: the constraint of an answer without channels is not a schema, or a strict
            schema cannot be enforced.
    """
    form = calling.format
    if isinstance(form, ChannelFormat):
        return harmony_grammar(form, calling.tools, choice, content=content, strict=strict)
    if isinstance(content, Regex | OneOf):
        raise ConstraintError("tools and a constraint that is no JSON schema exclude each other")
    grammar = _Grammar(calling, form, choice, is_parallel, content, strict)
    return grammar.build(reasoning, opens_reasoning=opens_reasoning)


class _Grammar:
    """Builds the rules of one call format."""

    def __init__(
        self,
        calling: Calling,
        form: CallFormat,
        choice: ToolChoice | NamedTool,
        is_parallel: bool,
        content: JsonSchema | None,
        strict: Collection[str],
    ) -> None:
        self._calling = calling
        self._form = form
        self._choice = choice
        self._is_parallel = is_parallel
        self._content = content
        self._rules = LarkRules()
        self._schemas = ToolSchemas(self._rules, strict)

    def build(self, reasoning: tuple[Mark, Mark] | None, *, opens_reasoning: bool) -> Lark:
        thought = "" if reasoning is None else self._thought(*reasoning, opens=opens_reasoning)
        return self._rules.grammar(" | ".join(f"{thought} {way}" for way in self._ways()))

    def _thought(self, start: Mark, end: Mark, *, opens: bool) -> str:
        """Return an expression for the reasoning."""
        if end.token_id is None:
            self._rules.add(f"thought[lazy]: /(?s:.*){pattern(end.text)}/")
            thought = "thought"
        else:
            self._rules.add("THOUGHT: /(?s:.+)/")
            thought = f"THOUGHT? {self._rules.mark('thought_end', end)}"
        self._rules.add(r"SPACE: /\s{1,8}/")
        if opens:
            return f"{thought} SPACE?"
        return f"({self._rules.mark('thought_start', start)} {thought} SPACE?)?"

    def _ways(self) -> Iterator[str]:
        """Yield the alternatives of an answer after the reasoning."""
        opening = self._form.open
        one = self._one()
        if self._choice == "auto":
            yield self._free()
            if self._content is None and opening.text and opening.token_id is None:
                self._rules.add(f"head[lazy]: /(?s:.*){pattern(opening.text)}/")
                yield f"head {self._calls(one)}"
            elif self._content is None and opening.text:
                yield f"SAID? {self._rules.mark('open', opening)} {self._calls(one)}"
            else:
                yield f"{self._rules.mark('open', opening)} {self._calls(one)}"
        else:
            yield f"{self._rules.mark('open', opening)} {self._calls(one)}"

    def _free(self) -> str:
        """Return an expression for an answer without calls."""
        if self._content is not None:
            return self._rules.schema("content", self._content)
        opening = self._form.open
        said = r"[^{\s](?s:.*)" if not opening.text else "(?s:.+)"
        if opening.text and opening.token_id is None:
            said = _without(opening.text)
        self._rules.add(f"SAID: /{said}/")
        return "SAID?"

    def _calls(self, one: str) -> str:
        """Return an expression for the calls, after the delimiter that begins the first."""
        form = self._form
        close = self._rules.mark("close", form.close)
        if form.is_list:
            more = f'(", " {one})*' if self._is_parallel else ""
            return f'"[" {one} {more} "]" {close}'
        call = f"{literal(form.before)} {one} {literal(form.after)} {close}"
        if not self._is_parallel:
            return call
        return f"{call} ({literal(form.between)} {self._rules.mark('open', form.open)} {call})*"

    def _one(self) -> str:
        """Return an expression for one call of any permitted tool."""
        tools = [
            tool
            for tool in self._calling.tools
            if not isinstance(self._choice, NamedTool) or tool_name(tool) == self._choice.name
        ]
        for number, tool in enumerate(tools):
            self._rules.add(f"call_{number}: {self._call(number, tool)}")
        self._rules.add("call: " + " | ".join(f"call_{n}" for n in range(len(tools))))
        return "call"

    def _call(self, number: int, tool: Mapping[str, Any]) -> str:
        form, name = self._form.call, tool_name(tool)
        if isinstance(form, TaggedCall):
            return self._tagged(form, number, tool)
        arguments = self._schemas.arguments(f"arguments_{number}", tool)
        if isinstance(form, NamedCall):
            return f"{literal(name + form.between)} {arguments}"
        return self._object(form, name, arguments)

    def _object(self, form: JsonCall, name: str, arguments: str) -> str:
        head = f"{{{quoted(form.name)}: {quoted(name)}, {quoted(form.arguments)}: "
        return f'{literal(head)} {arguments} "}}"'

    def _tagged(self, form: TaggedCall, number: int, tool: Mapping[str, Any]) -> str:
        """Return an expression for a call with its arguments in the schema's order."""
        schema = tool_schema(tool)
        pieces = [literal(form.before_name + tool_name(tool) + form.after_name)]
        properties, required = schema.get("properties"), schema.get("required")
        named = properties if isinstance(properties, Mapping) else {}
        for index, (key, property_schema) in enumerate(named.items()):
            head = literal(form.before_key + key + form.after_key + form.before_value)
            value = self._value(form, f"value_{number}_{index}", tool, key, property_schema)
            is_needed = isinstance(required, list) and key in required
            pieces.append(f"({head} {value})" + "?" * (not is_needed))
        return " ".join([*pieces, literal(form.end)])

    def _value(
        self, form: TaggedCall, rule: str, tool: Mapping[str, Any], key: str, schema: Any
    ) -> str:
        """Return an expression for an argument's value and the tag after it."""
        behind = literal(form.after_value)
        if not is_text(schema):
            return f"{self._schemas.value(rule, tool, key, schema)} {behind}"
        if fixed := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
            return "(" + " | ".join(literal(value) for value in fixed) + f") {behind}"
        self._schemas.leave_text_free(tool, key, schema)
        self._rules.add(f"{rule}[lazy]: /(?s:.*){pattern(form.after_value)}/")
        return rule


def _without(mark: str) -> str:
    """Return a pattern of text without a delimiter whose first character occurs in it only once.

    After each such character, the text differs from the rest of the delimiter, ends, or repeats the
    character. For any other delimiter, the pattern matches all text.
    """
    first, rest = pattern(mark[0]), mark[1:]
    if mark[0] in rest:
        return "(?s:.+)"
    other = ""
    for letter in reversed(rest):
        spelled = pattern(letter)
        go_on = f"|{spelled}{other}" if other else ""
        other = f"(?:[^{first}{spelled}][^{first}]*{go_on})?"
    return f"(?:[^{first}]+(?:{first}{other})*|(?:{first}{other})+)"
