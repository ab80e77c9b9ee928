"""Messages between the server and a renderer: requests one way, prompts and refusals back.

Frames travel through pipes: lengths, a head of plain data, and large bytes as they are. Arrays
travel through the shared-memory arena. The server checks the types of all answers, since renderers
process files from clients.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from vlmkit import errors
from vlmkit.errors import ConstraintError, MediaError, RequestError, VlmkitError
from vlmkit.interfaces.chat_format import Calling, ChannelFormat, Mark
from vlmkit.interfaces.grounding_format import JsonGrounding, MarkedGrounding
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.running.prompting.prompt_builder import BuiltPrompt
from vlmkit.running.prompting.renderers.serializer import Unpacker, to_plain
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, image_parts_of
from vlmkit.types.request import Request
from vlmkit.types.stage import Stage
from vlmkit.types.transform import Transform

MALFORMED = "a message from another process is malformed"
LENGTH_BYTES = 8
MAX_HEAD_BYTES = 64 * 2**20  # a prompt of a million tokens takes a few
SENT = (
    *("messages", "text", "token_ids", "images", "adds_special", "task", "tools"),
    *("options", "places"),
)
"""The fields of a request that its prompt depends on."""


class ArrayAt(msgspec.Struct, array_like=True):
    """An array, whose bytes follow those of the previous array in the arena."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The size of the array."""
        if np.dtype(self.dtype).kind not in "biufc" or min(self.shape, default=0) < 0:
            raise ValueError("an array of no numbers")
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SlotAt(msgspec.Struct, array_like=True):
    """A media slot."""

    start: int
    stop: int
    digest: bytes
    inputs: list[ArrayAt]
    num_features: int
    kind: str
    transform: Transform | None
    preprocess: tuple[float, float]
    num_encoded: int


class ShownAt(msgspec.Struct, array_like=True):
    """An image of the conversation: its upright size, its page, and when it was fetched."""

    size: tuple[int, int]
    page: int | None
    fetch: tuple[float, float]


class Reply(msgspec.Struct, tag="made"):
    """A prompt."""

    token_ids: list[int]
    media: list[SlotAt]
    opens_reasoning: bool
    is_plain: bool
    calling: Any
    place_format: Any
    channels: Any
    reasoning_marks: Any
    shown: list[ShownAt]
    decodes: dict[int, tuple[float, float]]
    source_indices: list[int]


class Refusal(msgspec.Struct, tag="refused"):
    """An error, with the name of its class if that is one of vlmkit's."""

    kind: str
    message: str
    hint: str = ""
    param: str | None = None
    code: str | None = None
    index: int | None = None
    keyword: str = ""


class Ready(msgspec.Struct, tag="ready"):
    """The renderer is ready."""


Answer = Reply | Refusal | Ready
_DECODER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Frame(NamedTuple):
    """A head of plain data, and large bytes."""

    head: bytes
    blobs: Seq[bytes] = ()


CANCEL = Frame(b"")
"""The frame that cancels the previous request."""


def write_frame(pipe: BinaryIO, frame: Frame) -> None:
    """Send a frame."""
    sizes = [len(frame.head), *map(len, frame.blobs)]
    pipe.write(b"".join(n.to_bytes(LENGTH_BYTES, "big") for n in (len(sizes), *sizes)))
    pipe.write(frame.head)
    pipe.writelines(frame.blobs)
    pipe.flush()


def read_frame(pipe: BinaryIO, max_bytes: int | None = None) -> Frame:
    """Receive a frame.

    Raises:
        EOFError: the other process ended, or sent more than is allowed.
    """
    num = _number(pipe)
    if max_bytes is not None and num != 1:
        raise EOFError
    sizes = [_number(pipe) for _ in range(num)]
    if max_bytes is not None and sum(sizes) > max_bytes:
        raise EOFError
    head, *blobs = (_exactly(pipe, size) for size in sizes)
    return Frame(head, blobs)


def _number(pipe: BinaryIO) -> int:
    return int.from_bytes(_exactly(pipe, LENGTH_BYTES), "big")


def _exactly(pipe: BinaryIO, num_bytes: int) -> bytes:
    content = pipe.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


def request_frame(request: Request) -> Frame:
    """Return a request as a frame for a renderer.

    Raises:
        NotSerializable: it holds a value that cannot be serialized.
    """
    blobs: list[bytes] = []
    plain = {name: to_plain(getattr(request, name), blobs) for name in SENT}
    return Frame(msgspec.msgpack.encode(plain), blobs)


def request_of(frame: Frame) -> Request:
    """Return the request of a frame."""
    return Request(**Unpacker(frame.blobs).value(msgspec.msgpack.decode(frame.head)))


def reply_of(made: BuiltPrompt, arena: SharedArena) -> Reply:
    """Return the reply with a prompt, and write its arrays to the arena."""
    arrays, slots = [], []
    for slot in made.prompt.media:
        inputs = []
        for name, array in slot.inputs.items():
            given = array if isinstance(array, np.ndarray) else np.from_dlpack(array)
            plain = np.asarray(given, order="C")
            arrays.append(plain)
            inputs.append(ArrayAt(name, plain.dtype.str, plain.shape))
        slots.append(
            SlotAt(
                slot.start,
                slot.stop,
                slot.digest,
                inputs,
                slot.num_features,
                slot.kind,
                slot.transform,
                slot.preprocess,
                slot.num_encoded,
            )
        )
    arena.write(arrays)
    prompt, nothing = made.prompt, list[bytes]()
    return Reply(
        list(prompt.token_ids),
        slots,
        prompt.opens_reasoning,
        prompt.is_plain,
        to_plain(prompt.calling, nothing),
        to_plain(prompt.place_format, nothing),
        to_plain(prompt.channels, nothing),
        to_plain(prompt.reasoning_marks, nothing),
        [
            ShownAt((part.image.width, part.image.height), part.page, part.fetch)
            for part in image_parts_of(made.messages)
        ],
        dict(made.decodes),
        list(made.source_indices),
    )


def answer_of(frame: Frame) -> Answer:
    """Return the answer of a renderer.

    Raises:
        ValueError: it is malformed.
    """
    return _DECODER.decode(frame.head)


def built_prompt_of(reply: Reply | Ready, arena: SharedArena) -> BuiltPrompt:
    """Return the prompt of a reply.

    Raises:
        ValueError: it is no reply with a prompt, or malformed.
        EOFError: the arena does not hold its arrays.
    """
    if not isinstance(reply, Reply):
        raise ValueError(MALFORMED)  # noqa: TRY004 - the message is wrong, not a type in this program
    arrays = iter(arena.read(at.num_bytes for slot in reply.media for at in slot.inputs))
    media = tuple(
        MediaSlot(
            slot.start,
            slot.stop,
            slot.digest,
            {at.name: next(arrays).view(at.dtype).reshape(at.shape) for at in slot.inputs},
            slot.num_features,
            slot.kind,
            slot.transform,
            Stage(*slot.preprocess),
            slot.num_encoded,
        )
        for slot in reply.media
    )
    prompt = Prompt(
        tuple(reply.token_ids),
        media,
        reply.opens_reasoning,
        reply.is_plain,
        _one_of(Unpacker().value(reply.calling), Calling),
        _one_of(Unpacker().value(reply.place_format), MarkedGrounding, JsonGrounding),
        _one_of(Unpacker().value(reply.channels), ChannelFormat),
        _marks_of(Unpacker().value(reply.reasoning_marks)),
    )
    shown = tuple(
        ImagePart(Image.stand_in(each.size), page=each.page, fetch=Stage(*each.fetch))
        for each in reply.shown
    )
    decodes = {index: Stage(*stage) for index, stage in reply.decodes.items()}
    return BuiltPrompt(prompt, (Message("user", shown),), decodes, reply.source_indices)


def _marks_of(value: Any) -> tuple[Mark, Mark] | None:
    if value is None:
        return None
    start, end = value
    return _one_of(start, Mark), _one_of(end, Mark)


def _one_of(value: Any, *kinds: type[Any]) -> Any:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(MALFORMED)
    return value


def refusal_of(error: Exception) -> Refusal:
    """Return an error as a refusal; of a foreign error only the name of its class."""
    if not isinstance(error, VlmkitError):
        return Refusal("", type(error).__name__)
    kind = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, 0) is each)
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    index = getattr(error, "index", None)
    keyword = getattr(error, "keyword", "")
    return Refusal(kind.__name__, str(error), error.hint, param, code, index, keyword)


def error_of(refusal: Refusal) -> Exception:
    """Return the error of a refusal."""
    kind = getattr(errors, refusal.kind, None) if refusal.kind else None
    if not (isinstance(kind, type) and issubclass(kind, VlmkitError)):
        return RuntimeError(f"a renderer failed: {refusal.message}")
    error = kind.__new__(kind)
    VlmkitError.__init__(error, refusal.message, hint=refusal.hint)
    if isinstance(error, RequestError):
        error.param, error.code = refusal.param, refusal.code or error.code
    if isinstance(error, MediaError):
        error.index = refusal.index
    if isinstance(error, ConstraintError):
        error.keyword = refusal.keyword
    return error
