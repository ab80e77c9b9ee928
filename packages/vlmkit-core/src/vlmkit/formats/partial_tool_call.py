"""One call of a tool while it is written: text in, the tool's name and its arguments' JSON out.

Is generous: white space and the order of a JSON object's members are the model's own. Knows no
marks and no tokens.
"""

import json
from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.formats.json_scan import JsonDepth
from vlmkit.interfaces.chat_format import CallFormat, JsonCall, NamedCall, TaggedCall
from vlmkit.types.tool_choice import tool_name, tool_schema


class PartialToolCall(Protocol):
    """A call as it comes.

    Attributes:
        name: of the tool; None until it is known.
        is_done: whether the call is whole.
        is_broken: whether it is no call, or goes on as none.
        rest: of the text, what is behind it.
    """

    name: str | None
    is_done: bool
    is_broken: bool
    rest: str

    def push(self, text: str) -> str:
        """Take more of the text; return more of the arguments, none before the name is known."""
        ...

    def close(self) -> str:
        """Return what is left of the arguments: the mark that ends the call has come."""
        ...


def new_call(form: CallFormat, tools: Seq[Mapping[str, Any]]) -> PartialToolCall:
    """Return a call of which nothing was written yet."""
    if isinstance(form.call, JsonCall):
        return JsonToolCall(form.call)
    if isinstance(form.call, NamedCall):
        return NamedToolCall(form.call)
    return TaggedToolCall(form.call, form.close.text, tools)


class JsonToolCall:
    """A JSON object with a name and arguments."""

    def __init__(self, form: JsonCall) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._form = form
        self._place = JsonDepth()
        self._key: str | None = None
        self._member = ""  # the key that comes, or else its value
        self._untold = ""

    def push(self, text: str) -> str:
        """Take more of the object."""
        for place, letter in enumerate(text):
            if not self._place.depth and not letter.isspace() and letter != "{":
                self.is_broken = True
            else:
                self._step(letter)
            if self.is_done or self.is_broken:
                self.rest = text[place + self.is_done :]
                break
        return self._told()

    def close(self) -> str:
        """Return nothing: an object ends by itself, and one that does not is broken."""
        self.is_broken = not self.is_done
        return ""

    def _step(self, letter: str) -> None:
        was_inside = self._place.depth > 0
        self._place.step(letter)
        depth, in_string = self._place.depth, self._place.in_string
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
                self._untold += letter

    def _is_text(self) -> bool:
        """Tell whether the arguments are JSON within a string."""
        return self._member.lstrip().startswith('"')

    def _end_member(self) -> None:
        value = _read(self._member)
        if self._key == self._form.name:
            self.is_broken = not (isinstance(value, str) and value)
            self.name = None if self.is_broken else value
        elif self._key == self._form.arguments and self._is_text():
            self._untold = str(value)
        self._key, self._member = None, ""

    def _told(self) -> str:
        if self.name is None:
            return ""
        told, self._untold = self._untold, ""
        return told


class NamedToolCall:
    """A name, and behind a mark a JSON object."""

    def __init__(self, form: NamedCall) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._mark = form.between.strip()
        self._place = JsonDepth()
        self._held = ""

    def push(self, text: str) -> str:
        """Take more of the call."""
        if self.name is None:
            name, found, text = (self._held + text).partition(self._mark)
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
        told = ""
        for place, letter in enumerate(text):
            if not self._place.depth and letter.isspace():
                continue
            if not self._place.depth and letter != "{":
                self.is_broken, self.rest = True, text[place:]
                break
            self._place.step(letter)
            told += letter
            if not self._place.depth:
                self.is_done, self.rest = True, text[place + 1 :]
                break
        return told


class TaggedToolCall:
    """A name, and each argument between tags.

    Args:
        form: the tags.
        close: what ends the call, where the tags have no end of their own.
        tools: say which arguments are strings.
    """

    def __init__(self, form: TaggedCall, close: str, tools: Seq[Mapping[str, Any]]) -> None:
        self.name: str | None = None
        self.is_done = self.is_broken = False
        self.rest = ""
        self._form = form
        self._close = close
        self._schemas = {tool_name(tool): tool_schema(tool) for tool in tools}
        self._held = ""
        self._num_told = 0

    def push(self, text: str) -> str:
        """Take more of the call."""
        self._held += text
        if self.name is None:
            self._find_name()
        told = ""
        while self.name and not (self.is_done or self.is_broken) and (more := self._argument()):
            told += more
        if self.is_done or self.is_broken:
            self.rest, self._held = self._held, ""
        return told

    def close(self) -> str:
        """Return the end of the arguments; what is left of one is no argument."""
        if self.is_done:
            return ""
        if self.name is None:
            self._held += self._end()  # a call without arguments may end behind its name
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
        places = [place for end in ends if end and (place := begun.find(end)) >= 0]
        if not places:
            return
        name, rest = begun[: min(places)].strip(), begun[min(places) :]
        self.name, self._held = name or None, rest.removeprefix(behind)
        self.is_broken = not name

    def _argument(self) -> str:
        """Return the JSON of the next argument, or of the end; nothing while neither is whole."""
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
        return self._told(key.strip(), value)

    def _told(self, key: str, value: str) -> str:
        properties = self._schemas.get(self.name or "", {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        before = ", " if self._num_told else "{"
        self._num_told += 1
        written = _text(value) if is_text(schema) or not _is_json(value) else value.strip()
        return f"{before}{_text(key)}: {written}"

    def _last(self) -> str:
        """Return the end of the arguments."""
        return "}" if self._num_told else "{}"


def is_text(schema: object) -> bool:
    """Tell whether a schema's values are strings and nothing else."""
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
