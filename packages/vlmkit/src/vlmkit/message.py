"""What is said in a conversation: messages, and the parts a message is made of.

Holds structure only. How a conversation becomes tokens is the tokenizer's business.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vlmkit.errors import RequestError
from vlmkit.image import Image

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of plain text. No string in it is ever a control token or an image slot."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image at this place of the message."""

    image: Image


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: who speaks, and the parts in the order in which they are said."""

    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise RequestError(
                f"a message's role must be one of {', '.join(get_args(Role))}", param="role"
            )

    @classmethod
    def of(cls, role: Role, text: str, images: Sequence[Image] = ()) -> "Message":
        """Make a message that shows ``images`` first and then says ``text``."""
        return cls(role, (*(ImagePart(image) for image in images), TextPart(text)))

    @property
    def text(self) -> str:
        """The text of all text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


def images_of(messages: Sequence[Message]) -> Iterator[Image]:
    """Yield every image of a conversation, in the order in which they appear."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ImagePart):
                yield part.image


def turns(prompt: Any) -> Sequence[Message]:
    """Return a conversation that somebody passed to Python, if it is one.

    Raises:
        RequestError: it is something else, such as a list of dictionaries.
    """
    if isinstance(prompt, Sequence) and all(isinstance(turn, Message) for turn in prompt):
        return prompt
    raise RequestError(
        "a prompt must be a text or a list of vlmkit.Message",
        param="messages",
        hint='for example [Message.of("user", "Hello")]',
    )
