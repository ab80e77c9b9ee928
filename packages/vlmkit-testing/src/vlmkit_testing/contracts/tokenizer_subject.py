"""The subject of the tokenizer contracts: the tokenizer, and what its model supports."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import Option, Tokenizer
from vlmkit.types.delta import Delta
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_testing.contracts.pictures import picture


class TokenizerSubject:
    """What a tokenizer's author provides.

    Attributes:
        takes_images: whether the model supports images.
        keeps_places: whether images stay at their positions in a message; templates that put them
            before all text do not keep them.
        is_lossless: whether ``decode(encode(text)) == text`` for every text; not for a tokenizer
            that normalises.
        keeps_spaces: whether white space at the end of a message stays; some templates trim it.
        marks_answers: whether a prompt says where an answer begins; some templates do not.
        marks_turns: whether turns are told apart by tokens that no text can spell; some templates
            write words that a user can type.
        ends_turns: whether an earlier answer ends with one of ``eos_ids``; some templates end the
            last answer in another way.
        tells_roles: whether the turns of a system and of a tool are told from a user's; some
            templates know two roles.
        shows_nested_schemas: whether a prompt has the schemas of items of a tool's arguments; some
            templates write types alone.
        names_calls: whether prompts with tools state the format of calls; by default, tests of
            calls are skipped where it is missing.
    """

    takes_images = True
    keeps_places = True
    is_lossless = True
    keeps_spaces = True
    marks_answers = True
    marks_turns = True
    ends_turns = True
    tells_roles = True
    shows_nested_schemas = True
    names_calls = False

    def make(self) -> Tokenizer:
        """Return the tokenizer; may be the same each time."""
        raise NotImplementedError

    def special_texts(self) -> Sequence[str]:
        """Return every string that the vocabulary writes a special token as."""
        raise NotImplementedError

    def reasoning_marks(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the tokens that open and close an answer's reasoning; None without any."""
        return None

    # Helpers

    def _prompt(self, messages: list[Message]) -> Prompt:
        return self.make().prompt(messages)

    def _conversation(self) -> list[Message]:
        return [self._asked("hello")]

    def _asked(self, text: str) -> Message:
        """Return a question, with an image if the model supports any, since some need one."""
        return Message.of("user", text, [picture()] if self.takes_images else [])

    def _called(
        self, text: str, *, name: str | None = None, arguments: str | None = None
    ) -> list[Message]:
        """Return a conversation with a tool call and its result; every string in it is ``text``."""
        arguments = arguments or msgspec.json.encode({text: [text, 1]}).decode()
        call = ToolCallPart(text, name or text, arguments)
        return [
            self._asked("hello"),
            Message("assistant", (ReasoningPart(text), call)),
            Message("tool", (TextPart(text),), call.id),
        ]

    def _reader(self) -> AnswerReader:
        """Return a reader of an answer to a plain question."""
        return self.make().reader(self._prompt(self._conversation()))

    def _honouring(self, option: Option) -> Tokenizer:
        tokenizer = self.make()
        if option not in tokenizer.honours:
            pytest.skip(f"this tokenizer does not honour {option}")
        return tokenizer

    def _special_ids(self) -> frozenset[int]:
        return self.make().eos_ids | self.make().banned_ids

    def _controls(self, prompt: Prompt) -> list[int]:
        """Return the special tokens of a prompt, in order."""
        tokenizer = self.make()
        letter = tokenizer.encode("a")
        alone = tokenizer.decode(letter)
        silent = {i for i in set(prompt.token_ids) if tokenizer.decode([*letter, i]) == alone}
        return [i for i in prompt.token_ids if i in silent or i in self._special_ids()]


def read(reader: AnswerReader, token_ids: Sequence[int]) -> list[tuple[Delta, ...]]:
    """Return the deltas of each token of an answer, and last those of its end."""
    return [*map(reader.push, token_ids), reader.finish()]


def tool(name: str = "find", description: str = "does it", key: str = "what") -> dict[str, Any]:
    """Return a tool as a client defines it."""
    takes = {"type": "object", "properties": {key: {"type": "string", "description": "what"}}}
    function = {"name": name, "description": description, "parameters": takes}
    return {"type": "function", "function": function}
