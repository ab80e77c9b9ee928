"""The grammar of answers that call tools, made of the data by which such answers are read.

Text is free up to the mark of a call, what is thought is free up to its end, and a call is as its
tool's schema says.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vlmkit.ask.constraint import JsonSchema, Lark
from vlmkit.ask.tool_choice import NamedTool, ToolChoice, tool_name, tool_schema
from vlmkit.kit.written_call import is_text
from vlmkit.seams.chat_format import Calling, JsonCall, Mark, NamedCall, TaggedCall


def call_grammar(
    calling: Calling,
    choice: ToolChoice | NamedTool,
    *,
    is_parallel: bool = True,
    opens_reasoning: bool = False,
    content: JsonSchema | None = None,
) -> Lark:
    """Return the grammar of an answer to a conversation with tools.

    Args:
        calling: what may be called, and how.
        choice: whether the answer must call.
        is_parallel: whether it may call more than once.
        opens_reasoning: whether the prompt began the reasoning already.
        content: what an answer that calls nothing keeps to; free when None.
    """
    return _Grammar(calling, choice, is_parallel, content).made(opens_reasoning)


class _Grammar:
    """Rules under way."""

    def __init__(
        self,
        calling: Calling,
        choice: ToolChoice | NamedTool,
        is_parallel: bool,
        content: JsonSchema | None,
    ) -> None:
        self._calling = calling
        self._form = calling.format
        self._choice = choice
        self._is_parallel = is_parallel
        self._content = content
        self._rules: list[str] = []
        self._schemas: list[tuple[str, JsonSchema]] = []
        self._tokens: list[tuple[str, int]] = []

    def made(self, opens_reasoning: bool) -> Lark:
        thought = self._thought(opens_reasoning)
        said = " | ".join(f"{thought} {way}" for way in self._ways())
        self._rules.insert(0, f"start: {said}")
        return Lark("\n".join(self._rules), tuple(self._schemas), tuple(self._tokens))

    def _thought(self, opens_reasoning: bool) -> str:
        """Return what matches a thought; the empty text where none is to be expected."""
        if self._calling.reasoning is None:
            return ""
        start, end = self._calling.reasoning
        if end.token_id is None:
            self._rules.append(f"thought[lazy]: /(?s:.*){_pattern(end.text)}/")
            thought = "thought"
        else:
            self._rules.append("THOUGHT: /(?s:.+)/")
            thought = f"THOUGHT? {self._mark('thought_end', end)}"
        self._rules.append(r"SPACE: /\s{1,8}/")
        if opens_reasoning:
            return f"{thought} SPACE?"
        return f"({self._mark('thought_start', start)} {thought} SPACE?)?"

    def _ways(self) -> Iterator[str]:
        """Yield the ways to answer, behind a thought."""
        opening = self._form.open
        one = self._one()
        if self._choice == "auto":
            yield self._free()
            if self._content is None and opening.text and opening.token_id is None:
                self._rules.append(f"head[lazy]: /(?s:.*){_pattern(opening.text)}/")
                yield f"head {self._calls(one)}"
            elif self._content is None and opening.text:
                yield f"SAID? {self._mark('open', opening)} {self._calls(one)}"
            else:
                yield f"{self._mark('open', opening)} {self._calls(one)}"
        else:
            yield f"{self._mark('open', opening)} {self._calls(one)}"

    def _free(self) -> str:
        """Return what matches an answer that calls nothing."""
        if self._content is not None:
            self._schemas.append(("content", self._content))
            return "content"
        opening = self._form.open
        said = r"[^{\s](?s:.*)" if not opening.text else "(?s:.+)"
        if opening.text and opening.token_id is None:
            said = _without(opening.text)
        self._rules.append(f"SAID: /{said}/")
        return "SAID?"

    def _calls(self, one: str) -> str:
        """Return what matches the calls, behind the mark that begins the first."""
        form = self._form
        close = self._mark("close", form.close)
        if form.is_list:
            more = f'(", " {one})*' if self._is_parallel else ""
            return f'"[" {one} {more} "]" {close}'
        call = f"{_text(form.before)} {one} {_text(form.after)} {close}"
        if not self._is_parallel:
            return call
        return f"{call} ({_text(form.between)} {self._mark('open', form.open)} {call})*"

    def _one(self) -> str:
        """Return what matches one call of any of the tools that may be called."""
        tools = [
            tool
            for tool in self._calling.tools
            if not isinstance(self._choice, NamedTool) or tool_name(tool) == self._choice.name
        ]
        for number, tool in enumerate(tools):
            self._rules.append(f"call_{number}: {self._call(number, tool)}")
        self._rules.append("call: " + " | ".join(f"call_{n}" for n in range(len(tools))))
        return "call"

    def _call(self, number: int, tool: Mapping[str, Any]) -> str:
        form, name, schema = self._form.call, tool_name(tool), tool_schema(tool)
        if isinstance(form, TaggedCall):
            return self._tagged(form, number, name, schema)
        arguments = self._schema(f"arguments_{number}", schema)
        if isinstance(form, NamedCall):
            return f"{_text(name + form.between)} {arguments}"
        return self._object(form, name, arguments)

    def _object(self, form: JsonCall, name: str, arguments: str) -> str:
        head = f"{{{_json(form.name)}: {_json(name)}, {_json(form.arguments)}: "
        return f'{_text(head)} {arguments} "}}"'

    def _tagged(self, form: TaggedCall, number: int, name: str, schema: Mapping[str, Any]) -> str:
        """Return what matches a call with its arguments in the schema's order."""
        pieces = [_text(form.before_name + name + form.after_name)]
        properties, required = schema.get("properties"), schema.get("required")
        for place, (key, own) in enumerate((properties or {}).items()):
            head = _text(form.before_key + key + form.after_key + form.before_value)
            value = self._value(form, f"value_{number}_{place}", own, schema.get("$defs"))
            is_needed = isinstance(required, list) and key in required
            pieces.append(f"({head} {value})" + "?" * (not is_needed))
        return " ".join([*pieces, _text(form.end)])

    def _value(self, form: TaggedCall, rule: str, schema: Any, defs: Any) -> str:
        """Return what matches an argument's value and what is behind it."""
        behind = _text(form.after_value)
        if not is_text(schema):
            own = {**schema, "$defs": defs} if defs and isinstance(schema, dict) else schema
            return f"{self._schema(rule, own)} {behind}"
        if fixed := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
            return "(" + " | ".join(_text(value) for value in fixed) + f") {behind}"
        self._rules.append(f"{rule}[lazy]: /(?s:.*){_pattern(form.after_value)}/")
        return rule

    def _schema(self, rule: str, schema: Any) -> str:
        self._schemas.append((rule, JsonSchema.of(schema)))
        return rule

    def _mark(self, rule: str, mark: Mark) -> str:
        if mark.token_id is None:
            return _text(mark.text)
        if (rule, mark.token_id) not in self._tokens:
            self._tokens.append((rule, mark.token_id))
        return rule


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(text: str) -> str:
    """Return what matches a text; nothing for the empty one."""
    return _json(text) if text else ""


def _without(mark: str) -> str:
    """Return the pattern of a text that does not hold a mark, whose first character comes once.

    Behind each such character, something differs from the rest of the mark, or the text ends, or
    the character comes again. With another mark, text is free.
    """
    first, rest = _pattern(mark[0]), mark[1:]
    if mark[0] in rest:
        return "(?s:.+)"
    other = ""
    for letter in reversed(rest):
        spelled = _pattern(letter)
        go_on = f"|{spelled}{other}" if other else ""
        other = f"(?:[^{first}{spelled}][^{first}]*{go_on})?"
    return f"(?:[^{first}]+(?:{first}{other})*|(?:{first}{other})+)"


def _pattern(text: str) -> str:
    """Return the regular expression of a text."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
