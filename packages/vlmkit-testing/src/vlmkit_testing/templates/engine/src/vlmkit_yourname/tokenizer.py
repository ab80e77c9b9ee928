"""The text side: one token for each byte, and a few that no text can spell."""

import codecs
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.types.message import Message, parts_of, refuse_other_media
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart

END = 256  # after the bytes, where no text can reach it
SYSTEM, USER, ANSWER, TOOL = 257, 258, 259, 260
VOCAB_SIZE = 261
ROLES = {"system": SYSTEM, "user": USER, "assistant": ANSWER, "tool": TOOL}


class ByteTokenizer:
    """Bytes as tokens; see :class:`vlmkit.interfaces.tokenizer.Tokenizer`."""

    vocab_size = VOCAB_SIZE
    eos_ids = frozenset({END})
    banned_ids = frozenset(ROLES.values())
    honours: frozenset[Option] = frozenset()

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Lay the turns out; refuse what this model cannot do."""
        if tools or any(isinstance(part, ToolCallPart) for part in parts_of(messages)):
            raise RequestError("this model uses no tools", param="tools")
        refuse_other_media(messages, ())  # it takes text alone
        token_ids: list[int] = []
        for message in messages:
            token_ids += [ROLES[message.role], *self.encode(message.text), END]
        return Prompt((*token_ids, ANSWER))

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the bytes of the text; this model marks neither beginning nor end."""
        return list(text.encode(errors="replace"))

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the bytes."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte; nothing for a special token."""
        return bytes([token_id]) if token_id < END else b""

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return what reads an answer: all of it is text."""
        return PlainParser(ByteStream())


class ByteStream:
    """Holds bytes back until they are a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the character that this byte completes, if it does."""
        return self._decoder.decode(bytes([token_id]) if token_id < END else b"")

    def flush(self) -> str:
        """Return what is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)
