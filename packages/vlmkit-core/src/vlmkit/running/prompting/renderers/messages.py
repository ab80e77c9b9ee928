"""Messages between the server and a renderer: requests one way, prompts and errors back.

They are frames of the wire codec, through pipes. The arrays of a prompt travel through the
shared-memory arena. The codec checks the types of all answers, since renderers process files from
clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from vlmkit.errors import VlmkitError, WireError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.running.prompting.prompt_builder import BuiltPrompt
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, image_parts_of
from vlmkit.types.request import Request
from vlmkit.types.stage import Stage
from vlmkit.wire.codec import Codec
from vlmkit.wire.frames import Frame, FrameLimits, read_frame, write_frame
from vlmkit.wire.type_names import TYPES

SENT = (
    *("messages", "text", "token_ids", "images", "adds_special", "task", "tools"),
    *("options", "places"),
)
"""The fields of a request on which its prompt depends."""

ANSWER_LIMITS = FrameLimits(max_buffers=0, max_buffer_bytes=0)
"""The largest frame that a server reads from a renderer."""


@dataclass(frozen=True, slots=True)
class ShownPart:
    """An image of the conversation: its upright size, its page, and when it was fetched."""

    size: tuple[int, int]
    page: int | None
    fetch: Stage


@dataclass(frozen=True, slots=True)
class Reply:
    """A prompt, and what else its request needs of the conversation."""

    prompt: Prompt
    shown: tuple[ShownPart, ...]
    decodes: Mapping[int, Stage]
    source_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InArena:
    """The next frame is a reply, whose buffers of these lengths are in the arena."""

    num_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is ready."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels the request that the renderer works for."""


@dataclass(frozen=True, slots=True)
class ForeignError:
    """An error that is not one of vlmkit's: the name of its class alone."""

    kind: str


Answer = Reply | Ready | ForeignError | VlmkitError
CODEC = Codec(
    {
        **TYPES,
        "renderer.reply": Reply,
        "renderer.shown": ShownPart,
        "renderer.in_arena": InArena,
        "renderer.ready": Ready,
        "renderer.cancel": Cancel,
        "renderer.foreign_error": ForeignError,
    }
)
CANCEL = CODEC.encode(Cancel())


def request_frame(request: Request) -> Frame:
    """Return the part of a request that its prompt depends on as a frame for a renderer.

    Raises:
        NotSerializable: it holds a value that cannot be sent.
    """
    return CODEC.encode(Request(**{name: getattr(request, name) for name in SENT}))


def send_answer(pipe: BinaryIO, answer: Frame, arena: SharedArena) -> None:
    """Send the frame of an answer; the arrays of a reply go to the arena.

    Raises:
        OSError: the server is gone.
    """
    if answer.buffers:
        write_frame(pipe, CODEC.encode(InArena(arena.write(answer.buffers))))
    write_frame(pipe, Frame(answer.head))


def read_answer(pipe: BinaryIO, arena: SharedArena) -> Answer:
    """Receive an answer of a renderer.

    Raises:
        EOFError: the renderer ended.
        WireError: the answer is malformed, or is no answer.
    """
    answer = CODEC.decode(read_frame(pipe, ANSWER_LIMITS))
    if isinstance(answer, InArena):
        buffers = arena.read(answer.num_bytes)
        answer = CODEC.decode(Frame(read_frame(pipe, ANSWER_LIMITS).head, buffers))
    if not isinstance(answer, Answer):
        raise WireError("a renderer sent a message that is no answer")
    return answer


def reply_of(made: BuiltPrompt) -> Reply:
    """Return the reply with a prompt."""
    shown = tuple(
        ShownPart((part.image.width, part.image.height), part.page, part.fetch)
        for part in image_parts_of(made.messages)
    )
    return Reply(made.prompt, shown, made.decodes, tuple(made.source_indices))


def built_prompt_of(reply: Reply) -> BuiltPrompt:
    """Return the prompt of a reply."""
    shown = tuple(
        ImagePart(Image.stand_in(each.size), page=each.page, fetch=each.fetch)
        for each in reply.shown
    )
    return BuiltPrompt(reply.prompt, (Message("user", shown),), reply.decodes, reply.source_indices)


def sent_error(error: Exception) -> VlmkitError | ForeignError:
    """Return what is sent of an error; of a foreign error only the name of its class."""
    return error if isinstance(error, VlmkitError) else ForeignError(type(error).__name__)


def received_error(error: VlmkitError | ForeignError) -> Exception:
    """Return the error to raise for one that another process sent."""
    if isinstance(error, VlmkitError):
        return error
    return RuntimeError(f"another process of this model failed: {error.kind}")
