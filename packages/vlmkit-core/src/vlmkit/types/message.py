"""What is said in a conversation: messages, and the parts a message is made of.

Holds structure only. How a conversation becomes tokens is the tokenizer's business.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from vlmkit.errors import RequestError
from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.stage import NO_STAGE, Stage
from vlmkit.types.tool_call import ToolCallPart

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of plain text. No string in it is ever a control token or an image slot."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image at this place of the message.

    Attributes:
        image: the image.
        options: how large it is shown.
        page: the page of a document that it is, from 1; None of any other image.
        fetch: getting its file, for the request's timings.
        name: what errors call it, such as its path; never a text of a client.
    """

    image: Image
    options: ImageOptions = PLAIN_IMAGE
    page: int | None = None
    fetch: Stage = field(default=NO_STAGE, compare=False)
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the assistant thought before it said anything; a template may leave it out."""

    text: str


Part = TextPart | ImagePart | MediaPart | FilePart | ReasoningPart | ToolCallPart
OF_THE_ASSISTANT = ReasoningPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        role: who speaks.
        parts: what is said, in order. Reasoning and calls of tools are the assistant's alone.
        call_id: of a tool's turn: the call whose result it is.
    """

    role: Role
    parts: tuple[Part, ...]
    call_id: str | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise RequestError(
                f"a message's role must be one of {', '.join(get_args(Role))}", param="role"
            )
        if self.role != "assistant" and any(isinstance(p, OF_THE_ASSISTANT) for p in self.parts):
            raise RequestError(
                "reasoning and calls of tools belong to messages of the assistant", param="parts"
            )
        if self.role != "tool" and self.call_id is not None:
            raise RequestError("a call's id belongs to messages of a tool", param="call_id")

    @classmethod
    def of(
        cls,
        role: Role,
        text: str,
        images: Sequence[Image | ImagePart | FilePart] = (),
        media: Sequence[MediaPart | FilePart | ImagePart] = (),
    ) -> "Message":
        """Make a message that shows ``images`` and other ``media`` first and then says ``text``."""
        shown = (ImagePart(each) if isinstance(each, Image) else each for each in images)
        return cls(role, (*shown, *media, TextPart(text)))

    @property
    def text(self) -> str:
        """The text of all text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


def parts_of(messages: Sequence[Message]) -> Iterator[Part]:
    """Yield every part of a conversation, in the order in which they appear."""
    for message in messages:
        yield from message.parts


def image_parts_of(messages: Sequence[Message]) -> Iterator[ImagePart]:
    """Yield every image of a conversation and how it is shown, in the order of appearance."""
    return (part for part in parts_of(messages) if isinstance(part, ImagePart))


def images_of(messages: Sequence[Message]) -> Iterator[Image]:
    """Yield every image of a conversation, in the order in which they appear."""
    return (part.image for part in image_parts_of(messages))


def num_pixels(images: Iterable[Image]) -> int:
    """Return how many pixels there are to decode; an image that is shown twice has them once."""
    return sum(width * height for width, height in (each.source_size for each in set(images)))


def refuse_other_media(
    messages: Sequence[Message], taken: Container[str], who: str = "this model"
) -> None:
    """Refuse a conversation that holds what somebody does not take; for tokenizers, too.

    Args:
        messages: the conversation.
        taken: the kinds of media that are taken, such as ``image``.
        who: who takes them, for the error.

    Raises:
        RequestError: names the first kind of media that is not taken.
    """
    for part in parts_of(messages):
        if isinstance(part, MediaPart) and part.kind not in taken:
            problem = f"{who} takes no media of kind {part.kind!r}"
        elif isinstance(part, ImagePart) and "image" not in taken:
            problem = f"{who} takes no images"
        elif isinstance(part, FilePart):
            problem = "a file was opened by no media loader"
        else:
            continue
        raise RequestError(problem, param="messages", code="media_not_supported")
