"""The cache of preprocessed images: an image that was shown before is not decoded again.

A conversation sends its images with each turn. What a tokenizer made of them does not change, so
later prompts get it from here, and only unknown images reach a decoder. Keys hold the tenant and
its salt, because the time of an answer tells whether an image is known.

The features that an encoder computes have a cache of their own, see
:mod:`vlmkit.running.engine_loop.feature_cache`.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, Part, image_parts_of, parts_of
from vlmkit.types.prepared_image import PreparedImage
from vlmkit.types.request import Request

ENTRY_BYTES = 2048  # of an entry beside its arrays: objects, digests and tokens
LARGE_BYTES = 2**18
"""Files whose digests take so long that an event loop should not wait for them."""


class _Key(NamedTuple):
    """What a prepared image depends on, besides the model and its settings."""

    tenant: str
    cache_salt: str
    file_digest: bytes
    options: bytes


class PreparedImages:
    """Holds prepared images in up to ``max_bytes`` of memory; thread-safe.

    Attributes:
        num_hits: images of requests that were known.
        num_misses: those that were not.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[_Key, PreparedImage] = OrderedDict()
        self._lock = threading.Lock()
        self.num_hits = self.num_misses = 0

    @property
    def num_bytes(self) -> int:
        """Memory that the images and their entries take."""
        return self._num_bytes

    def known(self, request: Request) -> Request:
        """Return a request whose known images are prepared; the request itself if there are none.

        It computes digests of the images' files. A request with files of other kinds stays as it
        is, because another process opens them, and needs the images, too.
        """
        if not self._is_for(request) or _has_files(request):
            return request
        parts = list(image_parts_of(request.messages))
        found = [self._get(_key(request, part)) for part in parts]
        if not any(found):
            return request
        return replace(request, messages=with_prepared(request.messages, found))

    def keep(self, request: Request, prompt: Prompt, images: Iterable[Image]) -> Prompt:
        """Keep what was made of the images of a request, and return the prompt to use.

        That prompt has views of the arrays that are kept, so that each prompt is counted by itself.

        Args:
            request: the request, whose prepared images are not kept again.
            prompt: its prompt.
            images: the images of its conversation, with known sizes.
        """
        if not self._is_for(request):
            return prompt
        parts = list(image_parts_of(request.messages))
        prepared = prepared_images(prompt, images)
        if not parts or len(prepared) != len(parts):  # others are from files
            return prompt
        for part, each in zip(parts, prepared, strict=True):
            if each is not None and part.image.prepared is None:
                self._put(_key(request, part), each)
        media = tuple(replace(slot, inputs=_views(slot.inputs)) for slot in prompt.media)
        return replace(prompt, media=media)

    def num_unknown_bytes(self, request: Request) -> int:
        """Return the bytes of files whose digests :meth:`known` would compute."""
        images = (part.image for part in image_parts_of(request.messages))
        unknown = (each for each in images if "file_digest" not in each.__dict__)
        return sum(len(each.content) for each in unknown) if self._is_for(request) else 0

    def _is_for(self, request: Request) -> bool:
        """Return whether the images of a request may be kept: a light prompt has no pixels."""
        return bool(self._max_bytes) and not request.options.light

    def _get(self, key: _Key) -> PreparedImage | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._entries.move_to_end(key)
            return found

    def _put(self, key: _Key, prepared: PreparedImage) -> None:
        num_bytes = _num_bytes(prepared)
        if not key.file_digest or num_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = prepared
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._num_bytes -= _num_bytes(dropped)


def prepared_images(prompt: Prompt, images: Iterable[Image]) -> list[PreparedImage | None]:
    """Return what later prompts can use of each image of a prompt; None for those that are bound.

    Args:
        prompt: the prompt.
        images: the images of its conversation, with known sizes.
    """
    slots = (slot for slot in prompt.media if slot.kind == "image")
    return [_prepared(prompt, slot, image) for slot, image in zip(slots, images, strict=False)]


def _prepared(prompt: Prompt, slot: MediaSlot, image: Image) -> PreparedImage | None:
    arrays = slot.inputs.values()
    if slot.around is None or not all(isinstance(array, np.ndarray) for array in arrays):
        return None
    return PreparedImage(
        (image.width, image.height),
        prompt.token_ids[slot.start : slot.stop],
        slot.around,
        slot.digest,
        slot.inputs,
        slot.num_features,
        slot.transform,
        slot.num_encoded,
    )


def with_prepared(
    messages: Seq[Message], prepared: Iterable[PreparedImage | None]
) -> list[Message]:
    """Return a conversation in which images are prepared; those with None stay as they are.

    An image that is shown twice is still one image, whose pixels count once.
    """
    found = iter(prepared)
    images: dict[tuple[Image, PreparedImage], Image] = {}

    def shown(part: Part) -> Part:
        if not isinstance(part, ImagePart) or (known := next(found)) is None:
            return part
        if part.image.prepared is known:
            return part
        image = images.setdefault((part.image, known), Image.of_prepared(known))
        return replace(part, image=image)

    return [replace(each, parts=tuple(map(shown, each.parts))) for each in messages]


def _has_files(request: Request) -> bool:
    return any(isinstance(part, FilePart) for part in parts_of(request.messages))


def _key(request: Request, part: ImagePart) -> _Key:
    options = msgspec.msgpack.encode(part.options, order="deterministic", enc_hook=repr)
    return _Key(request.tenant, request.cache_salt, part.image.file_digest, options)


def _views(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {n: a.view() if isinstance(a, np.ndarray) else a for n, a in inputs.items()}


def _num_bytes(prepared: PreparedImage) -> int:
    return ENTRY_BYTES + sum(int(array.nbytes) for array in prepared.inputs.values())
