"""Tokenizers of models without images and tools, or with audio."""

import codecs
import hashlib
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.types.media import MediaPart
from vlmkit.types.message import Message, TextPart, parts_of, refuse_other_media
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart

END, SYSTEM, USER, ANSWER, SOUND = range(256, 261)
ROLES = {"system": SYSTEM, "user": USER, "assistant": ANSWER}


def refuse_tools(messages: Seq[Message], tools: Seq[Mapping[str, Any]] | None) -> None:
    """Refuse tools, their calls and their results."""
    used = any(isinstance(part, ToolCallPart) for part in parts_of(messages))
    if tools or used or any(message.role not in ROLES for message in messages):
        raise RequestError("this model uses no tools", param="tools")


class TextTokenizer:
    """One token for each byte; no images, no tools and no options."""

    vocab_size = 261
    eos_ids = frozenset({END})
    banned_ids = frozenset({SYSTEM, USER, ANSWER, SOUND})
    honours: frozenset[Option] = frozenset()
    takes: frozenset[str] = frozenset()

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Join the turns."""
        refuse_tools(messages, tools)
        refuse_other_media(messages, self.takes)
        ids: list[int] = []
        slots: list[MediaSlot] = []
        for message in messages:
            ids.append(ROLES[message.role])
            for part in message.parts:
                if isinstance(part, MediaPart):
                    slots.append(self.slot(part.media, len(ids)))
                    ids += [SOUND] * slots[-1].num_features
                elif isinstance(part, TextPart):
                    ids += self.encode(part.text)
            ids.append(END)
        return Prompt((*ids, ANSWER), tuple(slots))

    def slot(self, media: Any, start: int) -> MediaSlot:
        """Return the slot of a sound."""
        num = 1 + media.num_bytes // 4
        inputs = {"samples": np.frombuffer(media.samples, np.uint8).copy()}
        return MediaSlot(start, start + num, media.digest, inputs, num, kind="audio")

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode(errors="replace"))

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the bytes."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte; nothing for a special token."""
        return bytes([token_id]) if token_id < END else b""

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a reader that treats everything as text."""
        return PlainParser(_Stream(self))


class AudioTokenizer(TextTokenizer):
    """A text tokenizer that also accepts audio."""

    takes = frozenset({"audio"})


WORDS = (b" the", b"the", b" a", b"an", b"one", b"two", b"three", b"hello", b"ing", b", ", b"  ")


class WordTokenizer(TextTokenizer):
    """Has tokens of several bytes, and writes the roles of turns as words."""

    vocab_size = 257 + len(WORDS)
    banned_ids: frozenset[int] = frozenset()
    names: ClassVar[dict[str, str]] = {"system": "Rules", "user": "Person", "assistant": "Machine"}

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Write each turn as a line that names its speaker; an answer ends with a token."""
        refuse_tools(messages, tools)
        refuse_other_media(messages, ())
        ids: list[int] = []
        for message in messages:
            ids += self.encode(f"{self.names[message.role]}: {message.text}")
            ids += [END] if message.role == "assistant" else []
            ids += self.encode("\n\n")
        return Prompt((*ids, *self.encode("Machine:")))

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the longest tokens that fit, from the left."""
        left, ids = text.encode(errors="replace"), []
        place = 0
        while place < len(left):
            fitting = [n for n, word in enumerate(WORDS) if left.startswith(word, place)]
            best = max(fitting, key=lambda n: len(WORDS[n]), default=-1)
            ids.append(left[place] if best < 0 else END + 1 + best)
            place += 1 if best < 0 else len(WORDS[best])
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, or nothing for the end."""
        return WORDS[token_id - END - 1] if token_id > END else super().token_bytes(token_id)

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a reader that treats everything as text."""
        return PlainParser(_Stream(self))


@dataclass(frozen=True)
class Noise:
    """A sound as a medium."""

    samples: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the samples."""
        return hashlib.sha256(self.samples).digest()

    @property
    def num_bytes(self) -> int:
        """The number of sample bytes."""
        return len(self.samples)


class _Stream:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
