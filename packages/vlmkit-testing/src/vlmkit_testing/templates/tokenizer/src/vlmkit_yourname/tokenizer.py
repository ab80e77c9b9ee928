"""One token for each character that the model knows, and one for each byte of all others.

So every text can be told, and comes back as it was. Roles are tokens that no text can spell.
"""

import codecs
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from vlmkit.errors import CheckpointError, RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.types.message import Message, parts_of, refuse_other_media
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart

END = 256  # behind the bytes
ROLES = {"system": 257, "user": 258, "assistant": 259, "tool": 260}
FIRST_CHARACTER = 261


def characters_of(checkpoint: Checkpoint) -> list[str]:
    """Return the characters that a model knows.

    Raises:
        CheckpointError: its ``characters.json`` is no list of different characters.
    """
    found = checkpoint.read_json_list("characters.json")
    if not all(isinstance(each, str) and len(each) == 1 for each in found):
        raise CheckpointError(f"characters.json of model {checkpoint.name!r} must list characters")
    if len(set(found)) != len(found):
        raise CheckpointError(f"characters.json of model {checkpoint.name!r} has one twice")
    return found


class CharacterTokenizer:
    """Characters as tokens; see :class:`vlmkit.interfaces.tokenizer.Tokenizer`.

    Args:
        characters: those that have a token of their own, in the order of their ids.
    """

    eos_ids = frozenset({END})
    banned_ids = frozenset(ROLES.values())
    honours: frozenset[Option] = frozenset({"add_generation_prompt", "continue_final_message"})

    def __init__(self, characters: Seq[str]) -> None:
        self._ids = {character: FIRST_CHARACTER + i for i, character in enumerate(characters)}
        self._bytes = [
            *(bytes([i]) for i in range(256)),
            *[b""] * (FIRST_CHARACTER - 256),
            *(character.encode() for character in characters),
        ]

    @property
    def vocab_size(self) -> int:
        """How many token ids can be decoded."""
        return len(self._bytes)

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Lay a conversation out as ``(role text end)* assistant``.

        Raises:
            RequestError: it holds media or calls of tools, or offers tools.
        """
        if tools or any(isinstance(part, ToolCallPart) for part in parts_of(messages)):
            raise RequestError("this model uses no tools", param="tools")
        refuse_other_media(messages, ())  # it takes text alone
        token_ids: list[int] = []
        for message in messages:
            token_ids += [ROLES[message.role], *self.encode(message.text), END]
        if options.continue_final_message:
            del token_ids[-1]
        if options.begins_answer:
            token_ids.append(ROLES["assistant"])
        return Prompt(tuple(token_ids), is_plain=options.continue_final_message)

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the tokens of the text; half of a surrogate pair becomes ``?``."""
        found: list[int] = []
        for character in text:
            token_id = self._ids.get(character)
            found += character.encode(errors="replace") if token_id is None else (token_id,)
        return found

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the tokens."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a character, or one byte; nothing for a special token."""
        return self._bytes[token_id]

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return what reads an answer: all of it is text."""
        return PlainParser(CharacterStream(self))


class CharacterStream:
    """Holds bytes back until they are a character.

    Args:
        tokenizer: knows the bytes.
    """

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes, if it does."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Return what is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)
