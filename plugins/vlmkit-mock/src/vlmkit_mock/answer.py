"""What the mock says to a prompt: what its directive scripts, or else what it was shown.

It answers what was said last: a user's text, a tool's result, or a plain text. A directive is one
that is a JSON object with the one key ``mock``, such as
``{"mock": {"text": "hello", "fail_at_token": 3}}``; its fields are those of ``Script``.
"""

import json
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_mock import vocabulary as v
from vlmkit_mock.settings import Reply, Script

NUM_DIGEST_DIGITS = 16


class _Directive(msgspec.Struct, forbid_unknown_fields=True):
    mock: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer.

    Attributes:
        script: how it goes.
        thought: what comes first, marks included.
        said: what is said and called, once; never empty.
        num_tokens: how many tokens come before the end, going round ``said``.
        num_before_calls: how many tokens come before the first call; 0 if nothing is called.
    """

    script: Script
    thought: tuple[int, ...]
    said: Seq[int]
    num_tokens: int
    num_before_calls: int = 0

    def token(self, index: int) -> int:
        """Return token ``index`` of the answer: the end of it from ``num_tokens`` on."""
        return self.repeated(index) if index < self.num_tokens else v.END

    def repeated(self, index: int) -> int:
        """Return what would come at ``index`` if the answer never ended."""
        num_thought = len(self.thought)
        if 0 <= index < num_thought:
            return self.thought[index]
        return self.said[(index - num_thought) % len(self.said)]

    def resumed(self, token_id: int, index: int) -> int:
        """Return where the script goes on with a token that comes at ``index``, maybe early.

        That is where reasoning ends or calls begin before their time; else it is ``index``.
        """
        if token_id == v.REASONING_END and index < len(self.thought):
            return len(self.thought) - 1
        if token_id == v.CALL:
            return max(index, self.num_before_calls)
        return index


def answer_to(prompt: Prompt, default: Script, replies: Seq[Reply] = ()) -> Answer:
    """Return the answer to a prompt.

    Args:
        prompt: what is answered.
        default: a script, which a directive overrides field by field.
        replies: scripts in its place, for what has no directive; the first that fits is taken.

    Raises:
        RequestError: the directive is not valid.
    """
    said = _said_last(prompt)
    if said.lstrip().startswith('{"mock"'):
        script = _scripted(said, default)
    else:
        script = next((reply for reply in replies if reply.to in said), default)
    text = script.text
    if text is None:
        text = "" if script.calls else _description(prompt, said)
    encoded = [*text.encode(errors="replace"), *_called(script)]
    thought = _thought(script)
    num_tokens = len(thought) + len(encoded) if script.tokens is None else script.tokens
    num_before_calls = len(thought) + encoded.index(v.CALL) if script.calls else 0
    return Answer(script, thought, encoded or [ord(" ")], num_tokens, num_before_calls)


def _thought(script: Script) -> tuple[int, ...]:
    if script.reasoning is None:
        return ()
    return (v.REASONING, *script.reasoning.encode(errors="replace"), v.REASONING_END)


def _called(script: Script) -> Iterator[int]:
    for call in script.calls:
        yield v.CALL
        said = {"name": call.name, "arguments": call.arguments}
        yield from json.dumps(said, ensure_ascii=False).encode()
        yield v.CALL_END


def _scripted(text: str, default: Script) -> Script:
    try:
        given = msgspec.json.decode(text, type=_Directive).mock
        return msgspec.convert(_fields_of(default) | given, Script)
    except msgspec.DecodeError as error:  # its text may quote what the client sent
        raise RequestError(
            "the mock directive is not valid",
            hint=f"a JSON object of {', '.join(Script.__struct_fields__)}",
        ) from error


def _fields_of(script: Script) -> dict[str, Any]:
    return {name: getattr(script, name) for name in Script.__struct_fields__}


def _said_last(prompt: Prompt) -> str:
    """Return what a user or a tool said last, or a plain text; empty if none spoke."""
    ids = prompt.token_ids
    turns = [place for place, token_id in enumerate(ids) if token_id in (v.USER, v.TOOL)]
    if not turns:
        return _text(ids) if prompt.is_plain else ""
    start = turns[-1] + 1
    stop = ids.index(v.END, start) if v.END in ids[start:] else len(ids)
    text = _text(ids[start:stop])
    return _result(text) if ids[turns[-1]] == v.TOOL else text


def _result(turn: str) -> str:
    """Return what a tool's turn holds behind the id of its call, which is a string of JSON."""
    try:
        stop = json.JSONDecoder().raw_decode(turn)[1] if turn.startswith('"') else 0
    except ValueError:  # there is no id
        stop = 0
    return turn[stop:]


def _text(ids: Seq[int]) -> str:
    return bytes(i for i in ids if i < v.NUM_BYTES).decode(errors="replace")


def _description(prompt: Prompt, said: str) -> str:
    """Return one line for each image, then what was said last."""
    lines = [_image_line(number, slot) for number, slot in enumerate(prompt.media, start=1)]
    return "\n".join([*lines, said])


def _image_line(number: int, slot: MediaSlot) -> str:
    height, width = np.from_dlpack(slot.inputs["size"]).tolist()
    digest = bytes(np.from_dlpack(slot.inputs["digest"])).hex()
    return f"image {number}: {width}x{height} sha256:{digest[:NUM_DIGEST_DIGITS]}"
