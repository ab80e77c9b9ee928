"""The grammar of answers that call tools, made of the data by which such answers are read.

Text is free up to the mark of a call, what is thought is free up to its end, and a call is as its
tool's schema says.
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
        calling: what may be called, and how.
        choice: whether the answer must call.
        is_parallel: whether it may call more than once; where calls end an answer, none does.
        reasoning: the marks around what is thought first; None for a model that does not reason,
            or has a channel for it.
        opens_reasoning: whether the prompt began the reasoning already; channels say it themselves.
        content: what an answer that calls nothing keeps to; free when None.
        strict: names of tools whose schemas must be enforced in all their keywords, besides those
            whose definitions say so. What is left free of others, the grammar says.

    Raises:
        ConstraintError: an answer without channels may call, or be within other than a schema; or
            a strict schema cannot be enforced.
    """
    form = calling.format
    if isinstance(form, ChannelFormat):
        return harmony_grammar(form, calling.tools, choice, content=content, strict=strict)
    if isinstance(content, Regex | OneOf):
        raise ConstraintError("tools and a constraint that is no JSON schema exclude each other")
    grammar = _Grammar(calling, form, choice, is_parallel, content, strict)
    return grammar.made(reasoning, opens_reasoning=opens_reasoning)


class _Grammar:
    """Rules under way."""

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

    def made(self, reasoning: tuple[Mark, Mark] | None, *, opens_reasoning: bool) -> Lark:
        thought = "" if reasoning is None else self._thought(*reasoning, opens=opens_reasoning)
        said = " | ".join(f"{thought} {way}" for way in self._ways())
        return self._rules.made(said)

    def _thought(self, start: Mark, end: Mark, *, opens: bool) -> str:
        """Return what matches a thought."""
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
        """Yield the ways to answer, behind a thought."""
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
        """Return what matches an answer that calls nothing."""
        if self._content is not None:
            return self._rules.schema("content", self._content)
        opening = self._form.open
        said = r"[^{\s](?s:.*)" if not opening.text else "(?s:.+)"
        if opening.text and opening.token_id is None:
            said = _without(opening.text)
        self._rules.add(f"SAID: /{said}/")
        return "SAID?"

    def _calls(self, one: str) -> str:
        """Return what matches the calls, behind the mark that begins the first."""
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
        """Return what matches one call of any of the tools that may be called."""
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
        """Return what matches a call with its arguments in the schema's order."""
        schema = tool_schema(tool)
        pieces = [literal(form.before_name + tool_name(tool) + form.after_name)]
        properties, required = schema.get("properties"), schema.get("required")
        named = properties if isinstance(properties, Mapping) else {}
        for place, (key, own) in enumerate(named.items()):
            head = literal(form.before_key + key + form.after_key + form.before_value)
            value = self._value(form, f"value_{number}_{place}", tool, key, own)
            is_needed = isinstance(required, list) and key in required
            pieces.append(f"({head} {value})" + "?" * (not is_needed))
        return " ".join([*pieces, literal(form.end)])

    def _value(
        self, form: TaggedCall, rule: str, tool: Mapping[str, Any], key: str, schema: Any
    ) -> str:
        """Return what matches an argument's value and what is behind it."""
        behind = literal(form.after_value)
        if not is_text(schema):
            return f"{self._schemas.value(rule, tool, key, schema)} {behind}"
        if fixed := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
            return "(" + " | ".join(literal(value) for value in fixed) + f") {behind}"
        self._schemas.leave_text_free(tool, key, schema)
        self._rules.add(f"{rule}[lazy]: /(?s:.*){pattern(form.after_value)}/")
        return rule


def _without(mark: str) -> str:
    """Return the pattern of a text that does not hold a mark, whose first character comes once.

    Behind each such character, something differs from the rest of the mark, or the text ends, or
    the character comes again. With another mark, text is free.
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
