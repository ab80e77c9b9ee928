"""Detects the channels in which a chat template writes answers."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from vlmkit.interfaces.chat_format import ChannelFormat, Mark
from vlmkit.kit.harmony_parser import HarmonyParser
from vlmkit.kit.tool_call_formats import CHANNELS
from vlmkit.types.delta import Delta
from vlmkit.types.message import Message
from vlmkit_hf.chat.tool_call_formats import (
    ARGUMENTS,
    CALL,
    TOOL,
    ListDetokenizer,
    Segments,
    parsed_calls,
)
from vlmkit_hf.templates.stand_ins import Segment


def find_channels(is_known: Callable[[str], bool]) -> ChannelFormat | None:
    """Return the channel format with known message heads; None if there is none."""

    def fits(form: ChannelFormat) -> bool:
        return all(map(is_known, (form.start.text, form.channel.text, form.said, form.body.text)))

    return next(filter(fits, CHANNELS.values()), None)


def with_token_ids(form: ChannelFormat, added: Mapping[str, int]) -> ChannelFormat | None:
    """Return a channel format with token ids; None if the vocabulary lacks one of its marks."""
    marks = dict(_marks(form))
    if any(mark.text not in added for mark in marks.values()):
        return None
    tokens: dict[str, Any] = {
        name: mark._replace(token_id=added[mark.text]) for name, mark in marks.items()
    }
    return replace(form, **tokens)


def continued(form: ChannelFormat, segments: Sequence[Segment]) -> ChannelFormat:
    """Return a channel format with the channel that the template has opened for the answer."""
    last = segments[-1] if segments else Segment("", is_client=True)
    for channel in (form.reasoning, form.said, form.calls):
        head = form.channel.text + channel + form.body.text
        if not last.is_client and last.text.endswith(head):
            return replace(form, opens=channel)
    return form


def writes_calls(form: ChannelFormat, segments: Segments) -> bool:
    """Tell whether the parser reads back a tool call that a template wrote.

    Args:
        form: the channel format of the template.
        segments: renders a conversation with the template, up to the start of an answer.
    """
    asked = Message.of("user", "What?")
    prefix = "".join(text for text, _ in segments([asked]))
    prefix = prefix[: prefix.rfind(form.start.text)] + form.start.text + form.role
    whole = "".join(text for text, _ in segments([asked, Message("assistant", (CALL,))]))
    if not whole.startswith(prefix):
        return False
    marks = [mark.text for _, mark in _marks(form)]
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", whole[len(prefix) :])
    texts = [*marks, *pieces]
    tokens = with_token_ids(form, {text: number for number, text in enumerate(marks)})
    if tokens is None:
        return False
    reader = HarmonyParser(lambda: ListDetokenizer(texts), tokens, [TOOL])
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(texts.index(piece))
    return parsed_calls([*deltas, *reader.finish()]) == [(CALL.name, ARGUMENTS)]


def _marks(form: ChannelFormat) -> Iterator[tuple[str, Mark]]:
    """Yield the marks of a channel format, each with the name of its field."""
    for field in fields(form):
        if isinstance(mark := getattr(form, field.name), Mark):
            yield field.name, mark
