"""Messages of a conversation, and the parts of a message.

Structure only: tokenizers turn a conversation into tokens.
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
    """Plain text. No string in it ever becomes a control token or an image slot."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a message.

    Attributes:
        image: the image.
        options: the size in which the model sees it.
        page: its page number in a document, from 1; None for other images.
        fetch: the stage of getting its file, for the request's timings.
        name: its name in errors, such as its path; never text from a client.
    """

    image: Image
    options: ImageOptions = PLAIN_IMAGE
    page: int | None = None
    fetch: Stage = field(default=NO_STAGE, compare=False)
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """The reasoning of the assistant before its answer; a chat template may omit it."""

    text: str


Part = TextPart | ImagePart | MediaPart | FilePart | ReasoningPart | ToolCallPart
OF_THE_ASSISTANT = ReasoningPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: the role of the speaker.
        parts: the content, in order. Only the assistant's messages may hold reasoning and tool
            calls.
        call_id: the id of the tool call whose result the message holds; only for role ``tool``.
    """

    role: Role
    parts: tuple[Part, ...]
    call_id: str | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise RequestError(
                f"a message's role must be one of {', '.join(get_args(Role))}", param="role"
            )
        given: object = self.parts
        if isinstance(given, str):  # whose characters would be taken for parts
            raise RequestError(
                "a message's parts are a tuple of parts, not a text",
                param="parts",
                hint="Message.of(role, text) takes a text",
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
        """Return a message with ``images`` first, then other ``media``, then ``text``."""
        shown = (ImagePart(each) if isinstance(each, Image) else each for each in images)
        return cls(role, (*shown, *media, TextPart(text)))

    @property
    def text(self) -> str:
        """The concatenated text of all text parts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


def parts_of(messages: Sequence[Message]) -> Iterator[Part]:
    """Yield every part of a conversation in order."""
    for message in messages:
        yield from message.parts


def image_parts_of(messages: Sequence[Message]) -> Iterator[ImagePart]:
    """Yield every image part of a conversation in order."""
    return (part for part in parts_of(messages) if isinstance(part, ImagePart))


def images_of(messages: Sequence[Message]) -> Iterator[Image]:
    """Yield every image of a conversation in order."""
    return (part.image for part in image_parts_of(messages))


def num_pixels(images: Iterable[Image]) -> int:
    """Return the number of pixels to decode; counts an image that occurs twice once."""
    return sum(width * height for width, height in (each.source_size for each in set(images)))


def refuse_other_media(
    messages: Sequence[Message], taken: Container[str], who: str = "this model"
) -> None:
    """Raise an error if a conversation holds unsupported media; for use by tokenizers, too.

    Args:
        messages: the conversation.
        taken: the supported kinds of media, such as ``image``.
        who: the subject of the error message.

    Raises:
        RequestError: names the first unsupported kind of media.
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
