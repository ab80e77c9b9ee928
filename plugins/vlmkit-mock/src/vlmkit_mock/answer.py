"""Determines the mock's answer to a prompt, from its directive or its content.

The mock answers the last text: of a user, of a tool's result, or of a plain prompt. A directive is
a text that is a JSON object with the one key ``mock``, such as
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
        script: the script of the answer.
        reasoning: the tokens of the reasoning, marks included.
        content: the tokens of text and calls, once; never empty.
        num_tokens: the number of tokens before the end; ``content`` repeats.
        num_before_calls: the number of tokens before the first call; 0 without calls.
    """

    script: Script
    reasoning: tuple[int, ...]
    content: Seq[int]
    num_tokens: int
    num_before_calls: int = 0

    def token(self, index: int) -> int:
        """Return token ``index`` of the answer; from ``num_tokens`` on, the end."""
        return self.repeated(index) if index < self.num_tokens else v.END

    def repeated(self, index: int) -> int:
        """Return the token at ``index`` of an answer without an end."""
        num_thought = len(self.reasoning)
        if 0 <= index < num_thought:
            return self.reasoning[index]
        return self.content[(index - num_thought) % len(self.content)]

    def resumed(self, token_id: int, index: int) -> int:
        """Return the position in the script that a token at ``index`` continues from.

        It is later than ``index`` if the token ends the reasoning or starts a call early.
        """
        if token_id == v.REASONING_END and index < len(self.reasoning):
            return len(self.reasoning) - 1
        if token_id == v.CALL:
            return max(index, self.num_before_calls)
        return index


def answer_to(prompt: Prompt, default: Script, replies: Seq[Reply] = ()) -> Answer:
    """Return the answer to a prompt.

    Args:
        prompt: the prompt.
        default: the default script; a directive overrides its fields.
        replies: scripts for texts without a directive; the first match applies.

    Raises:
        RequestError: the directive is invalid.
    """
    content = _last_text(prompt)
    if content.lstrip().startswith('{"mock"'):
        script = _script_of(content, default)
    else:
        script = next((reply for reply in replies if reply.to in content), default)
    text = script.text
    if text is None:
        text = "" if script.calls else _description(prompt, content)
    encoded = [*text.encode(errors="replace"), *_call_tokens(script)]
    reasoning = _reasoning_tokens(script)
    num_tokens = len(reasoning) + len(encoded) if script.tokens is None else script.tokens
    num_before_calls = len(reasoning) + encoded.index(v.CALL) if script.calls else 0
    return Answer(script, reasoning, encoded or [ord(" ")], num_tokens, num_before_calls)


def _reasoning_tokens(script: Script) -> tuple[int, ...]:
    if script.reasoning is None:
        return ()
    return (v.REASONING, *script.reasoning.encode(errors="replace"), v.REASONING_END)


def _call_tokens(script: Script) -> Iterator[int]:
    for call in script.calls:
        yield v.CALL
        content = {"name": call.name, "arguments": call.arguments}
        yield from json.dumps(content, ensure_ascii=False).encode()
        yield v.CALL_END


def _script_of(text: str, default: Script) -> Script:
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


def _last_text(prompt: Prompt) -> str:
    """Return the last text of a user or a tool, or of a plain prompt; empty if there is none."""
    ids = prompt.token_ids
    starts = [place for place, token_id in enumerate(ids) if token_id in (v.USER, v.TOOL)]
    if not starts:
        return _text(ids) if prompt.is_plain else ""
    start = starts[-1] + 1
    stop = ids.index(v.END, start) if v.END in ids[start:] else len(ids)
    text = _text(ids[start:stop])
    return _result(text) if ids[starts[-1]] == v.TOOL else text


def _result(message: str) -> str:
    """Return a tool's result without the id of its call, a JSON string before it."""
    try:
        stop = json.JSONDecoder().raw_decode(message)[1] if message.startswith('"') else 0
    except ValueError:  # there is no id
        stop = 0
    return message[stop:]


def _text(ids: Seq[int]) -> str:
    return bytes(i for i in ids if i < v.NUM_BYTES).decode(errors="replace")


def _description(prompt: Prompt, content: str) -> str:
    """Return one line for each image, then the last text."""
    lines = [_image_line(number, slot) for number, slot in enumerate(prompt.media, start=1)]
    return "\n".join([*lines, content])


def _image_line(number: int, slot: MediaSlot) -> str:
    height, width = np.from_dlpack(slot.inputs["size"]).tolist()
    digest = bytes(np.from_dlpack(slot.inputs["digest"])).hex()
    return f"image {number}: {width}x{height} sha256:{digest[:NUM_DIGEST_DIGITS]}"
