"""The mock's tokenizer: one token for each byte, and special tokens for roles and images.

User text becomes byte tokens alone, so it cannot produce a control token or an image slot.
"""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence as Seq
from functools import partial
from typing import Any, get_args

from vlmkit.errors import ImageError
from vlmkit.interfaces.chat_format import CallFormat, Calling, JsonCall, Mark
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.kit.grounding_formats import QWEN3_VL
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.kit.reasoning_parser import ReasoningParser
from vlmkit.kit.tool_call_parser import ToolCallParser
from vlmkit.types.message import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    refuse_other_media,
)
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock import vocabulary as v
from vlmkit_mock.vision_encoder import slot_ids, slot_of

_MARKS = Mark("<|reasoning|>", v.REASONING), Mark("<|reasoning_end|>", v.REASONING_END)
_CALLS = CallFormat(JsonCall(), Mark("<|call|>", v.CALL), Mark("<|call_end|>", v.CALL_END))


class MockTokenizer:
    """Bytes as tokens; see :class:`vlmkit.interfaces.tokenizer.Tokenizer`."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids that can be decoded."""
        return v.VOCAB_SIZE

    @property
    def eos_ids(self) -> frozenset[int]:
        """The token that ends a message."""
        return v.EOS_IDS

    @property
    def banned_ids(self) -> frozenset[int]:
        """Role and image tokens, which no answer has."""
        return v.BANNED_IDS

    @property
    def honours(self) -> frozenset[Option]:
        """All options."""
        return frozenset(get_args(Option))

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Format a conversation as ``begin (role parts end)* assistant``; accepts any roles.

        Tools become a first system message with their JSON. Tool calls are JSON between marks, and
        the id of the call before a tool's result is JSON, too. ``enable_thinking`` opens the
        reasoning, and so does any effort except ``none``.

        Raises:
            RequestError: there are media other than images, or a call with invalid arguments.
        """
        refuse_other_media(messages, {"image"})
        token_ids = [v.BEGIN]
        slots: list[MediaSlot] = []
        if tools:
            token_ids += [v.SYSTEM, *_bytes(json.dumps(list(tools), sort_keys=True)), v.END]
        for message in messages:
            token_ids.append(v.ROLES[message.role])
            if message.call_id is not None:
                token_ids.extend(_bytes(json.dumps(message.call_id)))
            for part in message.parts:
                _append(part, token_ids, slots, light=options.light)
            token_ids.append(v.END)
        if options.continue_final_message:
            del token_ids[-1]
        thinks = options.reasoning_effort not in (None, "none")
        thinks = bool(options.chat_template_kwargs.get("enable_thinking", thinks))
        opens = options.begins_answer and thinks
        if options.begins_answer:
            token_ids += [v.ASSISTANT, v.REASONING] if opens else [v.ASSISTANT]
        calling = Calling(_CALLS, tuple(tools)) if tools else None
        return Prompt(
            tuple(token_ids),
            tuple(slots),
            opens_reasoning=opens,
            calling=calling,
            place_format=QWEN3_VL,
            reasoning_marks=_MARKS,
        )

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the UTF-8 bytes of a text; a lone surrogate becomes ``?``.

        ``adds_special`` adds the token that starts a conversation.
        """
        return [*([v.BEGIN] if adds_special else []), *_bytes(text)]

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the bytes, without special tokens."""
        return bytes(i for i in token_ids if i < v.NUM_BYTES).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of a token; empty for a special token."""
        return bytes([token_id]) if token_id < v.NUM_BYTES else b""

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a new parser of an answer, with marks of reasoning and tool calls."""
        stream = partial(MockTokenStream, shows_special=shows_special)
        if prompt.is_plain:
            return PlainParser(stream())
        parser = None
        if prompt.calling is not None:
            parser = ToolCallParser(stream, _CALLS, prompt.calling.tools)
        return ReasoningParser(stream, *_MARKS, is_open=prompt.opens_reasoning, said=parser)


class MockTokenStream:
    """Collects bytes until they form a character.

    Args:
        shows_special: whether the text includes special tokens.
    """

    def __init__(self, *, shows_special: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shows_special = shows_special

    def push(self, token_id: int) -> str:
        """Return the character that this byte completes; may be empty."""
        if token_id < v.NUM_BYTES:
            return self._decoder.decode(bytes([token_id]))
        return self.flush() + v.SPELLINGS[token_id] if self._shows_special else ""

    def flush(self) -> str:
        """Return a replacement character if the answer ended inside a character."""
        return self._decoder.decode(b"", final=True)


def _slot(part: ImagePart, start: int, index: int, *, light: bool) -> MediaSlot:
    if part.image.prepared is not None:
        return MediaSlot.of_prepared(part.image.prepared, start)
    try:
        return slot_of(part.image, start, part.options, light=light)
    except ImageError as error:
        error.index = index
        raise


def _append(part: Part, token_ids: list[int], slots: list[MediaSlot], *, light: bool) -> None:
    if isinstance(part, ImagePart):
        slots.append(_slot(part, len(token_ids), len(slots), light=light))
        token_ids.extend(slot_ids(slots[-1].num_features))
    elif isinstance(part, ReasoningPart):
        token_ids += [v.REASONING, *_bytes(part.text), v.REASONING_END]
    elif isinstance(part, ToolCallPart):
        call = {"id": part.id, "name": part.name, "arguments": part.parsed()}
        token_ids += [v.CALL, *_bytes(json.dumps(call)), v.CALL_END]
    elif isinstance(part, TextPart):
        token_ids.extend(_bytes(part.text))


def _bytes(text: str) -> Iterable[int]:
    return text.encode(errors="replace")
