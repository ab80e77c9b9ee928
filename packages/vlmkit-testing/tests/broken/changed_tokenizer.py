"""Base classes of broken tokenizers: the mock tokenizer with one changed step of a prompt."""

import dataclasses
from collections.abc import Callable, Sequence as Seq
from typing import Any

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import ImagePart, Message, Part, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer


class Changed(MockTokenizer):
    """Changes the messages, the tools or the prompt."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return messages

    def offered(self, tools: Any) -> Any:
        return tools

    def made(self, prompt: Prompt) -> Prompt:
        return prompt

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        said = self.turns(messages)
        return self.made(super().prompt(said, tools=self.offered(tools), options=options))


class ChangedSlots(Changed):
    """Changes each media slot."""

    def slot(self, slot: MediaSlot) -> MediaSlot:
        raise NotImplementedError

    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, media=tuple(map(self.slot, prompt.media)))


def with_parts(message: Message, wanted: Callable[[Part], bool]) -> Message:
    """Return a message with the wanted parts only."""
    return dataclasses.replace(message, parts=tuple(filter(wanted, message.parts)))


def with_role(message: Message, role: Any) -> Message:
    """Return a message with another role."""
    if role == "assistant":
        return dataclasses.replace(message, role=role, call_id=None)
    said = tuple(part for part in message.parts if isinstance(part, TextPart | ImagePart))
    return Message(role, said)
