"""Stand-ins for client text, so that a chat template never handles it.

A template is rendered with a stand-in for each client string. The rendered text is then cut at the
stand-ins, into what the template wrote and what the client wrote. Client text is cut out whole, so
it cannot add a role, an image or anything else to what the template wrote.

A stand-in keeps the white space around its text, so that a template may trim. It holds characters
that JSON and ``repr`` escape: they show how the template escaped the stand-in, and the text is
escaped in the same way. Does not tokenize.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from string import ascii_letters, digits
from typing import Any, NamedTuple

from vlmkit.errors import RequestError

MAX_JSON_DEPTH = 32
MIN_ID_CHARS = 9  # shorter ids are too easy to guess
TRACE_CHARS = 8

_STAND_IN = re.compile(r'(\d{20})-(\d+)(\\*)"(·|\\+u00b7)(\\+)-(\d{20})')
_RUN = re.compile(rf"[A-Za-z0-9]{{{TRACE_CHARS},}}")

# Words of a tool's JSON schema that templates look up. All else in a tool is client text.
_SCHEMA_KEYS = frozenset(
    {
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "properties",
        "required",
        "items",
        "enum",
        "anyOf",
        "oneOf",
        "allOf",
        "return",
        "additionalProperties",
        "default",
        "nullable",
        "format",
        "title",
        "strict",
        "$defs",
        "$ref",
        "const",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "examples",
    }
)
_SCHEMA_WORDS = frozenset(
    {"function", "object", "array", "string", "number", "integer", "boolean", "null", "any"}
)


class Segment(NamedTuple):
    """A run of rendered text, and whether a client wrote it."""

    text: str
    is_client: bool


class StandIns:
    """The client strings of one prompt. Each prompt needs an instance of its own."""

    def __init__(self) -> None:
        self._nonce = f"{secrets.randbelow(10**20):020d}"
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self._ids: dict[str, str] = {}
        self._rendered: set[int] = set()

    def hide(self, text: str) -> str:
        """Return a stand-in for client text; white space alone is returned as it is."""
        core = text.strip()
        if not core:
            return text
        number = self._numbers.setdefault(core, len(self._texts))
        if number == len(self._texts):
            self._texts.append(core)
        head, _, tail = text.partition(core)
        return f'{head}{self._nonce}-{number}"·\\-{self._nonce}{tail}'

    def hide_id(self, text: str) -> str:
        """Return a stand-in for an id, of letters and digits: templates check its length."""
        if len(text) < MIN_ID_CHARS or not (text.isascii() and text.isalnum()):
            return self.hide(text)
        if text not in self._ids:
            self._ids[text] = "".join(secrets.choice(ascii_letters + digits) for _ in text)
        return self._ids[text]

    def hide_json(self, value: Any, depth: int = MAX_JSON_DEPTH, *, is_schema: bool = True) -> Any:
        """Return a copy of a JSON value with every string hidden, except words of a tool's schema.

        Args:
            value: a tool's description, or a call's arguments.
            depth: the number of levels that it may have.
            is_schema: whether the value is a schema, whose words stay readable.

        Raises:
            RequestError: the value is nested too deeply.
        """
        if depth == 0:
            raise RequestError(f"tools are nested over {MAX_JSON_DEPTH} levels deep", param="tools")
        inner = partial(self.hide_json, depth=depth - 1, is_schema=is_schema)
        if isinstance(value, str):
            return value if is_schema and value in _SCHEMA_WORDS else self.hide(value)
        if isinstance(value, Mapping):
            hidden = (
                key if is_schema and key in _SCHEMA_KEYS else self.hide(str(key)) for key in value
            )
            return dict(zip(hidden, map(inner, value.values()), strict=True))
        return list(map(inner, value)) if isinstance(value, list | tuple) else value

    def restore(self, rendered: str) -> list[Segment]:
        """Cut rendered text at the stand-ins and replace them by the client's texts.

        Raises:
            RequestError: the template changed a stand-in, so its text cannot be located.
        """
        segments = []
        end = 0
        for start, stop, text in sorted([*self._texts_in(rendered), *self._ids_in(rendered)]):
            segments.append(Segment(rendered[end:start], is_client=False))
            segments.append(Segment(text, is_client=True))
            end = stop
        segments.append(Segment(rendered[end:], is_client=False))
        template_text = "\0".join(segment.text for segment in segments if not segment.is_client)
        pieces = {piece for _, piece in _pieces(template_text)}
        if any(trace in pieces for trace in _traces(self._nonce, *self._ids.values())):
            raise _altered()
        return [segment for segment in segments if segment.text]

    def is_rendered(self, text: str) -> bool:
        """Tell whether :meth:`restore` found a hidden text; white space always counts as found."""
        core = text.strip()
        return not core or self._numbers[core] in self._rendered

    def _texts_in(self, rendered: str) -> Iterator[tuple[int, int, str]]:
        """Yield the start and end of each stand-in of a text, and the text."""
        for found in _STAND_IN.finditer(rendered):
            if found[1] == found[6] == self._nonce:
                yield found.start(), found.end(), self._escaped(found)

    def _ids_in(self, rendered: str) -> Iterator[tuple[int, int, str]]:
        """Yield the same for ids, found by their first letters: there can be thousands."""
        by_head = {stand_in[:TRACE_CHARS]: (stand_in, text) for text, stand_in in self._ids.items()}
        for place, head in _pieces(rendered) if by_head else ():
            stand_in, text = by_head.get(head, ("", ""))
            if stand_in and rendered.startswith(stand_in, place):
                yield place, place + len(stand_in), text

    def _escaped(self, found: re.Match[str]) -> str:
        self._rendered.add(int(found[2]))
        text = self._texts[int(found[2])]
        is_ascii = found[4] != "·"
        escape = _ESCAPES.get((len(found[3]), len(found[5])))
        if escape is None:
            raise _altered()
        return escape(text, is_ascii)


def _traces(*secrets: str) -> Iterator[str]:
    """Yield the pieces that reveal a truncated stand-in."""
    for secret in secrets:
        yield from (secret[i : i + TRACE_CHARS] for i in range(len(secret) - TRACE_CHARS + 1))


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield every position and piece of text that could be such a piece."""
    for run in _RUN.finditer(text):
        for place in range(run.start(), run.end() - TRACE_CHARS + 1):
            yield place, text[place : place + TRACE_CHARS]


def without_stand_ins(text: str) -> str:
    """Return rendered text with an ellipsis for each stand-in."""
    return _STAND_IN.sub("...", text)


def _altered() -> RequestError:
    return RequestError(
        "the model's chat template rewrites what messages say, so their text cannot be "
        "distinguished from control tokens",
        param="messages",
        hint="give the model another chat template: tokenizer.chat_template",
    )


def _as_is(text: str, _: bool) -> str:
    return text


def _json(text: str, is_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=is_ascii)[1:-1]


def _json_twice(text: str, is_ascii: bool) -> str:
    return _json(_json(text, is_ascii), is_ascii)


def _repr(text: str, _: bool) -> str:
    return repr('"' + text)[2:-1]  # the quote makes repr choose as it did for the stand-in


# By the number of backslashes before the stand-in's quote, and for its backslash.
_ESCAPES: dict[tuple[int, int], Callable[[str, bool], str]] = {
    (0, 1): _as_is,
    (1, 2): _json,
    (3, 4): _json_twice,
    (0, 2): _repr,
}
