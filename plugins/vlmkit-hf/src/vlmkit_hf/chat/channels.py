"""Which channels a chat template writes answers in, by its own words and its vocabulary."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from vlmkit.interfaces.chat_format import ChannelFormat, Mark
from vlmkit.kit.harmony_parser import HarmonyParser
from vlmkit.kit.tool_call_formats import CHANNELS
from vlmkit.types.delta import Delta
from vlmkit.types.message import Message
from vlmkit_hf.chat.tool_call_formats import ARGUMENTS, CALL, TOOL, Segments, Texts, calls_in
from vlmkit_hf.templates.stand_ins import Segment


def channels_of(is_known: Callable[[str], bool]) -> ChannelFormat | None:
    """Return the channels of which all that the head of a message consists of is known."""

    def fits(form: ChannelFormat) -> bool:
        return all(map(is_known, (form.start.text, form.channel.text, form.said, form.body.text)))

    return next(filter(fits, CHANNELS.values()), None)


def in_tokens(form: ChannelFormat, added: Mapping[str, int]) -> ChannelFormat | None:
    """Return channels by their tokens; None for a vocabulary that lacks one."""
    marks = dict(_marks(form))
    if any(mark.text not in added for mark in marks.values()):
        return None
    tokens: dict[str, Any] = {
        name: mark._replace(token_id=added[mark.text]) for name, mark in marks.items()
    }
    return replace(form, **tokens)


def behind(form: ChannelFormat, segments: Sequence[Segment]) -> ChannelFormat:
    """Return channels as an answer goes on with them behind a template's last words."""
    last = segments[-1] if segments else Segment("", is_client=True)
    for channel in (form.reasoning, form.said, form.calls):
        head = form.channel.text + channel + form.body.text
        if not last.is_client and last.text.endswith(head):
            return replace(form, opens=channel)
    return form


def writes_calls(form: ChannelFormat, segments: Segments) -> bool:
    """Tell whether what a template writes is read as the call that it is.

    Args:
        form: how the template writes messages.
        segments: writes a conversation by it, up to where an answer begins.
    """
    asked = Message.of("user", "What?")
    before = "".join(text for text, _ in segments([asked]))
    before = before[: before.rfind(form.start.text)] + form.start.text + form.role
    whole = "".join(text for text, _ in segments([asked, Message("assistant", (CALL,))]))
    if not whole.startswith(before):
        return False
    marks = [mark.text for _, mark in _marks(form)]
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", whole[len(before) :])
    texts = [*marks, *pieces]
    tokens = in_tokens(form, {text: number for number, text in enumerate(marks)})
    if tokens is None:
        return False
    reader = HarmonyParser(lambda: Texts(texts), tokens, [TOOL])
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(texts.index(piece))
    return calls_in([*deltas, *reader.finish()]) == [(CALL.name, ARGUMENTS)]


def _marks(form: ChannelFormat) -> Iterator[tuple[str, Mark]]:
    """Yield the marks of channels, each with the name of its field."""
    for field in fields(form):
        if isinstance(mark := getattr(form, field.name), Mark):
            yield field.name, mark
