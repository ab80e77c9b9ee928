"""Detects a chat template's format of tool calls: renders sample calls and parses them back."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.interfaces.chat_format import CallFormat, JsonCall, Mark, NamedCall, TaggedCall
from vlmkit.kit.tool_call_formats import FORMATS
from vlmkit.kit.tool_call_parser import ToolCallParser
from vlmkit.types.delta import Delta, text_of, tool_calls_of
from vlmkit.types.message import Message
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.templates.stand_ins import Segment

ARGUMENTS = {"city": "Bonn", "days": 3, "near": [{"x": True}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks up.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "description": "How long."},
                "near": {"type": "array", "description": "What else."},
            },
            "required": ["city"],
        },
    },
}
CALL = ToolCallPart("aCall0123", "lookup", json.dumps(ARGUMENTS))

_DECODER = json.JSONDecoder()
Segments = Callable[[Sequence[Message]], Sequence[Segment]]


def detect_format(segments: Segments) -> CallFormat | None:
    """Return the format that parses the calls of a template; None if no format does.

    Args:
        segments: renders a conversation with the template.
    """
    asked = Message.of("user", "What?")
    result = Message("tool", Message.of("tool", "That.").parts, CALL.id)
    try:
        called = _text(segments([asked, Message("assistant", (CALL,)), result]))
        said = _text(segments([asked, Message.of("assistant", "SAID"), result]))
    except RequestError:
        return None
    start, _, end = said.partition("SAID")
    written = called[_num_common_chars(called, start) :]
    for tail in (end, end.lstrip()):  # a template may trim
        if tail and written.endswith(tail):
            written = written.removesuffix(tail)
            break
    known = [*FORMATS.values(), *_candidates(written)]
    return next(
        (form for form in known if _parsed_with(form, written) == [("lookup", ARGUMENTS)]), None
    )


def with_token_ids(form: CallFormat, added: Mapping[str, int]) -> CallFormat:
    """Return a format with the token ids of its marks, where the vocabulary has them."""
    syntax = form.call
    texts: tuple[str, ...] = ()
    if isinstance(syntax, NamedCall):
        texts = (syntax.between,)
    if isinstance(syntax, TaggedCall):
        texts = (syntax.before_key, syntax.after_key, syntax.before_value, syntax.after_value)
    inner = [Mark(text.strip(), added[text.strip()]) for text in texts if text.strip() in added]
    return replace(
        form,
        open=form.open._replace(token_id=added.get(form.open.text)),
        close=form.close._replace(token_id=added.get(form.close.text)),
        inner=tuple(inner),
    )


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def _num_common_chars(one: str, other: str) -> int:
    """Return the length of the longest common prefix, in characters."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _candidates(written: str) -> Iterator[CallFormat]:
    """Yield possible formats of a rendered call: a JSON object, or a name and an object."""
    for start in (place for place, letter in enumerate(written) if letter == "{"):
        try:
            value, end = _DECODER.raw_decode(written, start)
        except ValueError:
            continue
        keys = {str(inner): key for key, inner in value.items()}
        before, behind = written[:start], written[end:]
        if value == ARGUMENTS:
            opening, name, between = before.rpartition(CALL.name)
            if name and between.strip():
                yield _call_format(NamedCall(between), opening, behind)
        elif keys.keys() >= {CALL.name, str(ARGUMENTS)}:
            yield _call_format(JsonCall(keys[CALL.name], keys[str(ARGUMENTS)]), before, behind)
        return


def _call_format(call: JsonCall | NamedCall, before: str, behind: str) -> CallFormat:
    is_list = before.rstrip().endswith("[") and behind.lstrip().startswith("]")
    if is_list:
        before, behind = before.rstrip()[:-1], behind.lstrip()[1:]
    return CallFormat(
        call,
        Mark(before.strip()),
        Mark(behind.strip()),
        before=before[len(before.rstrip()) :],
        after=behind[: len(behind) - len(behind.lstrip())],
        is_list=is_list,
    )


def _parsed_with(form: CallFormat, written: str) -> list[tuple[str, Any]]:
    reader = ToolCallParser(ListDetokenizer, form, [TOOL])
    return parsed_calls([*reader.take(written), *reader.finish()])


def parsed_calls(deltas: Sequence[Delta]) -> list[tuple[str, Any]]:
    """Return the calls of an answer without text, each with its parsed arguments."""
    return [] if text_of(deltas).strip() else list(_parsed(tool_calls_of(deltas)))


def _parsed(calls: Sequence[ToolCallPart]) -> Iterator[tuple[str, Any]]:
    for call in calls:
        try:
            yield call.name, call.parsed()
        except RequestError:
            yield call.name, None


class ListDetokenizer:
    """A detokenizer whose tokens are the items of a list."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts = texts

    def push(self, token_id: int) -> str:
        """Return the text of a token."""
        return self._texts[token_id]

    def flush(self) -> str:
        """Return an empty text: no token holds part of a character."""
        return ""
