"""The mock's vision: image slots of four tokens, and features from an image's size and digest.

A slot has fewer tokens if a request limits them. Nothing is resized. The encoder gets only the
resulting size and the digest of an image.
"""

import hashlib
import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np

from vlmkit.errors import EngineError, ImageError, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.stage import Stage
from vlmkit.types.transform import Transform
from vlmkit_mock import vocabulary as v
from vlmkit_mock.settings import MockEncoderSettings

HIDDEN = 8
NUM_IMAGE_TOKENS = 4
"""The most feature rows of an image; its slot has two more tokens, the markers around them."""

MAX_ASPECT_RATIO = 4
"""An image with a larger ratio of its sides has at least two tokens."""

_LIMIT = "max_dynamic_patch"
_ROW_BYTES = 8


def slot_ids(num_tokens: int) -> tuple[int, ...]:
    """Return the tokens of one image."""
    return (v.IMAGE_START, *[v.IMAGE] * num_tokens, v.IMAGE_END)


def slot_of(image: Image, start: int, options: ImageOptions, *, light: bool = False) -> MediaSlot:
    """Return the slot of an image whose first marker is token ``start``.

    Raises:
        ImageError: the image cannot be made as small as requested.
        RequestError: the request has limits that the mock does not have.
    """
    num_tokens = _num_tokens(image, options)
    upright = (image.height, image.width)
    used = tuple(max(1, side * num_tokens // NUM_IMAGE_TOKENS) for side in upright)
    slot = MediaSlot(
        start=start,
        stop=start + len(slot_ids(num_tokens)),
        digest=b"",
        inputs={},
        num_features=num_tokens,
        transform=Transform(
            source_size=(image.source_size[1], image.source_size[0]),
            turned=image.turned,
            upright_size=upright,
            used_size=(used[0], used[1]),
            scale=(used[0] / upright[0], used[1] / upright[1]),
        ),
    )
    return slot if light else _filled(slot, image, used)


def _filled(slot: MediaSlot, image: Image, used: tuple[int, ...]) -> MediaSlot:
    """Return a slot with the encoder's inputs."""
    began_s = time.time()
    num_tokens = slot.num_features
    content = image.digest + (b"" if num_tokens == NUM_IMAGE_TOKENS else bytes([num_tokens]))
    seen = bytearray(image.digest[: num_tokens * _ROW_BYTES])
    return replace(
        slot,
        digest=hashlib.sha256(b"vlmkit-mock 1\0" + content).digest(),
        inputs={
            "size": np.array(used, dtype=np.int32),
            "digest": np.frombuffer(seen, dtype=np.uint8),
        },
        preprocess=Stage.since(began_s),
        around=("", ""),
    )


def _num_tokens(image: Image, options: ImageOptions) -> int:
    limits = (NUM_IMAGE_TOKENS, _limit(options), options.most_tokens)
    min_tokens = (
        2
        if max(image.width, image.height) > MAX_ASPECT_RATIO * min(image.width, image.height)
        else 1
    )
    if options.max_tokens is not None and options.max_tokens < min_tokens:
        raise ImageError(
            f"max_image_tokens is {options.max_tokens}, and this model needs {min_tokens} at least "
            f"for an image of {image.width}x{image.height}",
            code="image_over_budget",
        )
    return max(min_tokens, min(limit for limit in limits if limit is not None))


def _limit(options: ImageOptions) -> int | None:
    """Return the only processor setting that the mock supports; None if it is not set."""
    if not options.processor:
        return None
    value: int = options.processor.get(_LIMIT, 0)
    is_one = len(options.processor) == 1 and type(value) is int
    if not is_one or not 1 <= value <= NUM_IMAGE_TOKENS:
        raise RequestError(
            "mm_processor_kwargs has something that the mock does not take",
            param="mm_processor_kwargs",
            code="unsupported_parameter",
            hint=f"it takes {_LIMIT} from 1 to {NUM_IMAGE_TOKENS}",
        )
    return value


class MockVisionEncoder:
    """Returns eight bytes of the digest for each of the four rows; a ``MediaEncoder``."""

    identity = "vlmkit-mock 1"
    media_kinds = frozenset({"image"})

    def __init__(self, settings: MockEncoderSettings | None = None) -> None:
        self._settings = settings or MockEncoderSettings()
        self._is_closed = False

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Raises:
            EngineError: an image has the size on which the settings make it fail.
        """
        if self._is_closed:
            raise EngineError("the mock vision encoder is closed")
        sizes = [_numbers(slot, "size") for slot in slots]
        if any(tuple(size.tolist()) == self._settings.fail_size for size in sizes):
            raise EngineError(f"the mock was told to fail on size {self._settings.fail_size!r}")
        if slots and self._settings.latency_s:
            time.sleep(self._settings.latency_s)
        return [_features(slot, size) for slot, size in zip(slots, sizes, strict=True)]

    def close(self) -> None:
        """Refuse every later call."""
        self._is_closed = True


def _features(slot: MediaSlot, size: Any) -> MediaFeatures:
    digest, size = _numbers(slot, "digest").copy(), size.copy()  # nothing refers to inputs then
    embeddings = (digest.astype(np.float32) / 255.0).reshape(slot.num_features, HIDDEN)
    num_bytes = embeddings.nbytes + digest.nbytes + size.nbytes
    return MediaFeatures(slot.num_features, embeddings, {"digest": digest, "size": size}, num_bytes)


def _numbers(slot: MediaSlot, name: str) -> Any:
    if name not in slot.inputs:
        raise EngineError(f"the mock vision encoder needs the input {name!r} of its own tokenizer")
    return np.from_dlpack(slot.inputs[name])
