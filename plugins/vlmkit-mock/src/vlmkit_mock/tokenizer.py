"""The mock's text side: one token for each byte, roles and images as tokens of their own.

User text becomes bytes and nothing else, so it cannot spell a control token or an image slot.
Pictures are not resized; their size and digest are all that the encoder gets.
"""

import codecs
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.image import Image
from vlmkit.message import ImagePart, Message, Part
from vlmkit.prompt import ImageSlot, Prompt, Transform
from vlmkit_mock import vocabulary as v

NUM_IMAGE_TOKENS = 4
"""Feature rows of one image; its slot is two tokens longer, for the markers around them."""

_SLOT_IDS = (v.IMAGE_START, *[v.IMAGE] * NUM_IMAGE_TOKENS, v.IMAGE_END)


class MockTokenizer:
    """Bytes as tokens; see :class:`vlmkit.protocols.Tokenizer`."""

    @property
    def vocab_size(self) -> int:
        """How many token ids can be decoded."""
        return v.VOCAB_SIZE

    @property
    def eos_ids(self) -> frozenset[int]:
        """The token that ends a turn."""
        return v.EOS_IDS

    @property
    def banned_ids(self) -> frozenset[int]:
        """Roles and image tokens: everything that is neither a byte nor the end."""
        return v.BANNED_IDS

    def prompt(
        self, messages: Seq[Message], *, tools: Seq[Mapping[str, Any]] | None = None
    ) -> Prompt:
        """Lay a conversation out as ``begin (role parts end)* assistant``; takes any roles.

        Tools become a first system turn that holds them as JSON.
        """
        token_ids = [v.BEGIN]
        slots: list[ImageSlot] = []
        if tools:
            token_ids += [v.SYSTEM, *_bytes(json.dumps(list(tools), sort_keys=True)), v.END]
        for message in messages:
            token_ids.append(v.ROLES[message.role])
            for part in message.parts:
                _append(part, token_ids, slots)
            token_ids.append(v.END)
        token_ids.append(v.ASSISTANT)
        return Prompt(tuple(token_ids), tuple(slots))

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of the text; half of a surrogate pair becomes ``?``."""
        return list(_bytes(text))

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the bytes, leaving special tokens out."""
        return bytes(i for i in token_ids if i < v.NUM_BYTES).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the one byte of a token; none for a special token."""
        return bytes([token_id]) if token_id < v.NUM_BYTES else b""

    def stream(self) -> "MockTokenStream":
        """Return a fresh incremental detokenizer."""
        return MockTokenStream()


class MockTokenStream:
    """Collects bytes until they are a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the character that this byte completes, if it does."""
        return self._decoder.decode(bytes([token_id])) if token_id < v.NUM_BYTES else ""

    def flush(self) -> str:
        """Return a replacement character if the answer ended inside a character."""
        return self._decoder.decode(b"", final=True)


def slot_of(image: Image, start: int) -> ImageSlot:
    """Return the slot of an image whose first marker is token ``start``."""
    size = (image.height, image.width)
    return ImageSlot(
        start=start,
        stop=start + len(_SLOT_IDS),
        digest=hashlib.sha256(b"vlmkit-mock 1\0" + image.digest).digest(),
        inputs={
            "size": np.array(size, dtype=np.int32),
            "digest": np.frombuffer(bytearray(image.digest), dtype=np.uint8),
        },
        num_features=NUM_IMAGE_TOKENS,
        transform=Transform(
            source_size=(image.source_size[1], image.source_size[0]),
            turned=image.turned,
            upright_size=size,
            used_size=size,
            scale=(1.0, 1.0),
        ),
    )


def _append(part: Part, token_ids: list[int], slots: list[ImageSlot]) -> None:
    if isinstance(part, ImagePart):
        slots.append(slot_of(part.image, len(token_ids)))
        token_ids.extend(_SLOT_IDS)
    else:
        token_ids.extend(_bytes(part.text))


def _bytes(text: str) -> Iterable[int]:
    return text.encode(errors="replace")
