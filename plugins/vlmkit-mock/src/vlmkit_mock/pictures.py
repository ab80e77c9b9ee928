"""How the mock shows pictures: four tokens each, or as few as a request wants.

Nothing is resized; what the picture's size would be and its digest are all that the encoder gets.
"""

import hashlib
import time
from dataclasses import replace

import numpy as np

from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.stage import Stage
from vlmkit.types.transform import Transform
from vlmkit_mock import vocabulary as v

NUM_IMAGE_TOKENS = 4
"""Feature rows of one image at most; its slot is two tokens longer, for the markers around them."""

LONG = 4
"""A picture whose sides differ by more has two tokens at least."""

_LIMIT = "max_dynamic_patch"
_ROW_BYTES = 8


def slot_ids(num_tokens: int) -> tuple[int, ...]:
    """Return the tokens of one image."""
    return (v.IMAGE_START, *[v.IMAGE] * num_tokens, v.IMAGE_END)


def slot_of(image: Image, start: int, options: ImageOptions, *, light: bool = False) -> MediaSlot:
    """Return the slot of an image whose first marker is token ``start``.

    Raises:
        ImageError: it cannot be made as small as is asked for.
        RequestError: the limits are none of the mock's.
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
    """Return a slot with what the encoder gets."""
    began_s = time.time()
    num_tokens = slot.num_features
    told_by = image.digest + (b"" if num_tokens == NUM_IMAGE_TOKENS else bytes([num_tokens]))
    seen = bytearray(image.digest[: num_tokens * _ROW_BYTES])
    return replace(
        slot,
        digest=hashlib.sha256(b"vlmkit-mock 1\0" + told_by).digest(),
        inputs={
            "size": np.array(used, dtype=np.int32),
            "digest": np.frombuffer(seen, dtype=np.uint8),
        },
        preprocess=Stage.since(began_s),
    )


def _num_tokens(image: Image, options: ImageOptions) -> int:
    limits = (NUM_IMAGE_TOKENS, _limit(options), options.most_tokens)
    least = 2 if max(image.width, image.height) > LONG * min(image.width, image.height) else 1
    if options.max_tokens is not None and options.max_tokens < least:
        raise ImageError(
            f"max_image_tokens is {options.max_tokens}, and this model needs {least} at least for "
            f"an image of {image.width}x{image.height}",
            code="image_over_budget",
        )
    return max(least, min(limit for limit in limits if limit is not None))


def _limit(options: ImageOptions) -> int | None:
    """Return the one limit that the mock takes by a processor's name."""
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
