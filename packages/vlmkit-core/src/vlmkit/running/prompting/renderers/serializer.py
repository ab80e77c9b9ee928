"""The allow-list serializer: values of a closed list of classes as plain data, and back.

It replaces pickle between the server and its renderers and constraint workers: no message can name
any other class. Large bytes travel beside the data.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import fields, is_dataclass
from typing import Any

from vlmkit.image_files.decode_cost import DecodeCost
from vlmkit.interfaces.chat_format import (
    CallFormat,
    Calling,
    ChannelFormat,
    JsonCall,
    Mark,
    NamedCall,
    TaggedCall,
)
from vlmkit.interfaces.grounding_format import JsonGrounding, MarkedGrounding
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, ReasoningPart, TextPart
from vlmkit.types.pages import Pages
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.stage import Stage
from vlmkit.types.tool_call import ToolCallPart

SMALL_BYTES = 256
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1  # of MessagePack; a schema may hold larger ones
PLAIN = (type(None), bool, int, float, str)
CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(Message, TextPart, ImagePart, FilePart, ReasoningPart, ToolCallPart, PlacedImage),
        *(ImageOptions, PromptOptions, Pages, Stage),
        *(Calling, CallFormat, ChannelFormat, JsonCall, NamedCall, TaggedCall, Mark),
        *(MarkedGrounding, JsonGrounding),
        *(JsonSchema, JsonObject, Regex, OneOf, Lark),
    )
}


class NotSerializable(Exception):  # noqa: N818 - no error for users: callers handle it
    """A value is of no class on the allow-list."""


def to_plain(value: Any, blobs: list[bytes]) -> Any:
    """Return a value as plain data.

    Args:
        value: a value of classes on the allow-list.
        blobs: large bytes are appended here.

    Raises:
        NotSerializable: it holds a value of another class.
    """
    if type(value) is int and not MIN_INTEGER <= value <= MAX_INTEGER:
        return ["integer", hex(value)]
    if type(value) in PLAIN:
        return value
    if isinstance(value, bytes):
        return value if len(value) <= SMALL_BYTES else ["blob", _blob_index(value, blobs)]
    if isinstance(value, Image):
        if not value.content or value.decoder:
            raise NotSerializable
        return [
            "image",
            list(value.source_size),
            _blob_index(value.content, blobs),
            list(value.cost),
        ]
    name = type(value).__name__
    if CLASSES.get(name) is type(value):
        held = (
            {each.name: getattr(value, each.name) for each in fields(value)}
            if is_dataclass(value)
            else value._asdict()
        )
        return [name, {key: to_plain(each, blobs) for key, each in held.items()}]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotSerializable
        return {key: to_plain(each, blobs) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return ["values", [to_plain(each, blobs) for each in value]]
    raise NotSerializable


def _blob_index(content: bytes, blobs: list[bytes]) -> int:
    """Return the index of some bytes among the blobs; the same object is appended once."""
    index = next((index for index, blob in enumerate(blobs) if blob is content), len(blobs))
    if index == len(blobs):
        blobs.append(content)
    return index


class Unpacker:
    """Rebuilds values from plain data.

    Args:
        blobs: the large bytes of the message.
    """

    def __init__(self, blobs: Seq[bytes] = ()) -> None:
        self._blobs = blobs
        self._images: dict[int, Image] = {}

    def value(self, data: Any) -> Any:
        """Return the value of plain data; lists are returned as tuples.

        Raises:
            ValueError: the data is malformed.
        """
        if isinstance(data, Mapping):
            return {key: self.value(each) for key, each in data.items()}
        if not isinstance(data, list):
            return data
        try:
            kind, *rest = data
            if kind == "values":
                return tuple(self.value(each) for each in rest[0])
            if kind == "integer":
                return int(rest[0], 16)
            if kind == "blob":
                return self._blobs[rest[0]]
            if kind == "image":
                return self._image(*rest)
            return CLASSES[kind](**self.value(rest[0]))
        except (LookupError, TypeError) as error:
            raise ValueError("a message from another process is malformed") from error

    def _image(self, size: Seq[int], index: int, cost: Seq[int]) -> Image:
        if index not in self._images:
            made = Image((size[0], size[1]), self._blobs[index], cost=DecodeCost(*cost))
            self._images[index] = made
        return self._images[index]
