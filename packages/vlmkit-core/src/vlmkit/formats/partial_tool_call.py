"""Incremental parsers of one tool call: text in, the tool's name and the arguments' JSON out.

They accept any white space and any order of a JSON object's members. They do not handle tokens or
the delimiters around a call.
"""

import json
from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.interfaces.chat_format import CallFormat, JsonCall, NamedCall, TaggedCall
from vlmkit.types.tool_choice import tool_name, tool_schema


class PartialToolCall(Protocol):
    """A tool call that is parsed incrementally.

    Attributes:
        name: the name of the tool; None until it is known.
        is_done: whether the call is complete.
        is_broken: whether the text is not a valid call.
        rest: the text after the call.
    """

    name: str | None
    is_done: bool
    is_broken: bool
    rest: str

    def push(self, text: str) -> str:
        """Parse more text; return more of the arguments, none before the name is known."""
        ...

    def close(self) -> str:
        """Return the rest of the arguments, at the delimiter that ends the call."""
        ...


def new_call(form: CallFormat, tools: Seq[Mapping[str, Any]]) -> PartialToolCall:
    """Return a fresh parser of one call."""
    if isinstance(form.call, JsonCall):
        return JsonToolCall(form.call)
    if isinstance(form.call, NamedCall):
        return NamedToolCall(form.call)
    return TaggedToolCall(form.call, form.close.text, tools)


class JsonToolCall:
    """Parses a call that is a JSON object with a name and arguments."""

    def __init__(self, form: JsonCall) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._form = form
        self._position = JsonDepth()
        self._key: str | None = None
        self._member = ""  # the key being parsed, or else its value
        self._pending = ""  # arguments not yet returned

    def push(self, text: str) -> str:
        """Parse more of the object."""
        for index, letter in enumerate(text):
            if not self._position.depth and not letter.isspace() and letter != "{":
                self.is_broken = True
            else:
                self._step(letter)
            if self.is_done or self.is_broken:
                self.rest = text[index + self.is_done :]
                break
        return self._take_pending()

    def close(self) -> str:
        """Return nothing: a complete object ends by itself; an incomplete one is broken."""
        self.is_broken = not self.is_done
        return ""

    def _step(self, letter: str) -> None:
        was_inside = self._position.depth > 0
        self._position.step(letter)
        depth, in_string = self._position.depth, self._position.in_string
        if not was_inside:
            return
        if depth == 0 or (letter == "," and depth == 1 and not in_string):
            self._end_member()
            self.is_broken |= depth == 0 and self.name is None
            self.is_done = depth == 0 and not self.is_broken
        elif self._key is None and letter == ":" and not in_string:
            self._key, self._member = str(_read(self._member)), ""
        else:
            self._member += letter
            is_value = depth > 1 or in_string or not letter.isspace()
            if is_value and self._key == self._form.arguments and not self._is_text():
                self._pending += letter

    def _is_text(self) -> bool:
        """Return whether the arguments are JSON inside a string."""
        return self._member.lstrip().startswith('"')

    def _end_member(self) -> None:
        value = _read(self._member)
        if self._key == self._form.name:
            self.is_broken = not (isinstance(value, str) and value)
            self.name = None if self.is_broken else value
        elif self._key == self._form.arguments and self._is_text():
            self._pending = str(value)
        self._key, self._member = None, ""

    def _take_pending(self) -> str:
        if self.name is None:
            return ""
        arguments, self._pending = self._pending, ""
        return arguments


class NamedToolCall:
    """Parses a call that is a name, a separator and a JSON object."""

    def __init__(self, form: NamedCall) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._separator = form.between.strip()
        self._position = JsonDepth()
        self._held = ""

    def push(self, text: str) -> str:
        """Parse more of the call."""
        if self.name is None:
            name, found, text = (self._held + text).partition(self._separator)
            if not found:
                self._held = name
                return ""
            self.name = name.strip() or None
            self.is_broken = self.name is None
        return "" if self.is_broken else self._arguments(text)

    def close(self) -> str:
        """Return nothing: the arguments end by themselves."""
        self.is_broken = not self.is_done
        return ""

    def _arguments(self, text: str) -> str:
        arguments = ""
        for index, letter in enumerate(text):
            if not self._position.depth and letter.isspace():
                continue
            if not self._position.depth and letter != "{":
                self.is_broken, self.rest = True, text[index:]
                break
            self._position.step(letter)
            arguments += letter
            if not self._position.depth:
                self.is_done, self.rest = True, text[index + 1 :]
                break
        return arguments


class TaggedToolCall:
    """Parses a call that is a name, then each argument between tags.

    Args:
        form: the tags.
        close: ends the call if the tags have no end of their own.
        tools: definitions of the tools, whose schemas say which arguments are strings.
    """

    def __init__(self, form: TaggedCall, close: str, tools: Seq[Mapping[str, Any]]) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._form = form
        self._close = close
        self._schemas = {tool_name(tool): tool_schema(tool) for tool in tools}
        self._held = ""
        self._num_arguments = 0

    def push(self, text: str) -> str:
        """Parse more of the call."""
        self._held += text
        if self.name is None:
            self._find_name()
        arguments = ""
        while self.name and not (self.is_done or self.is_broken) and (more := self._argument()):
            arguments += more
        if self.is_done or self.is_broken:
            self.rest, self._held = self._held, ""
        return arguments

    def close(self) -> str:
        """Return the end of the arguments; drop an incomplete argument."""
        if self.is_done:
            return ""
        if self.name is None:
            self._held += self._end()  # a call without arguments may end after its name
            self._find_name()
        self.is_broken, self.is_done = self.name is None, self.name is not None
        return self._last() if self.is_done else ""

    def _end(self) -> str:
        return self._form.end.strip() or self._close

    def _find_name(self) -> None:
        begun, start = self._held.lstrip(), self._form.before_name.strip()
        if not begun.startswith(start):
            self.is_broken = not start.startswith(begun)
            return
        begun = begun.removeprefix(start).lstrip()
        behind = self._form.after_name.strip()
        ends = (behind or "\n", self._form.before_key.strip(), self._end())
        found = [index for end in ends if end and (index := begun.find(end)) >= 0]
        if not found:
            return
        name, rest = begun[: min(found)].strip(), begun[min(found) :]
        self.name, self._held = name or None, rest.removeprefix(behind)
        self.is_broken = not name

    def _argument(self) -> str:
        """Return the JSON of the next argument or of the end; empty while it is incomplete."""
        form, begun = self._form, self._held.lstrip()
        start, end = form.before_key.strip(), self._end()
        if end and begun.startswith(end):
            self.is_done = True
            self._held = begun.removeprefix(form.end.strip())
            return self._last()
        if not begun.startswith(start):
            self.is_broken = not (start.startswith(begun) or end.startswith(begun))
            return ""
        key, _, rest = begun.removeprefix(start).partition(form.after_key.strip())
        if opening := form.before_value.strip():
            _, found, rest = rest.partition(opening)
            rest = rest if found else ""
        value, ended, rest = rest.partition(form.after_value.strip())
        if not ended:
            return ""
        self._held = rest
        if form.before_value.endswith("\n"):
            value = value.removeprefix("\n")
        if form.after_value.startswith("\n"):
            value = value.removesuffix("\n")
        return self._member(key.strip(), value)

    def _member(self, key: str, value: str) -> str:
        """Return an argument as a member of a JSON object."""
        properties = self._schemas.get(self.name or "", {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        before = ", " if self._num_arguments else "{"
        self._num_arguments += 1
        written = _text(value) if is_text(schema) or not _is_json(value) else value.strip()
        return f"{before}{_text(key)}: {written}"

    def _last(self) -> str:
        """Return the end of the arguments."""
        return "}" if self._num_arguments else "{}"


class JsonDepth:
    """The nesting depth at the last character of a JSON text; validates nothing."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._is_escaped = False

    def step(self, letter: str) -> None:
        """Advance by a character."""
        if self._is_escaped:
            self._is_escaped = False
        elif self.in_string:
            self._is_escaped = letter == "\\"
            self.in_string = letter != '"'
        elif letter == '"':
            self.in_string = True
        elif letter in "{[":
            self.depth += 1
        elif letter in "}]":
            self.depth -= 1


def is_text(schema: object) -> bool:
    """Return whether all values of a schema are strings."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return all(isinstance(value, str) for value in schema["enum"])
    return schema.get("type") in ("string", ["string"]) or isinstance(schema.get("const"), str)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    return _read(text, default=None) is not None or text.strip() == "null"


def _read(text: str, default: Any = "") -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=lambda _: default)
    except (ValueError, RecursionError):
        return default
