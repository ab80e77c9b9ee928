"""The mock's eyes: features that are a function of the picture's size and digest alone."""

import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_mock.settings import MockEncoderSettings

HIDDEN = 8


class MockVisionEncoder:
    """Eight bytes of the digest for each of the four rows: a ``MediaEncoder``."""

    identity = "vlmkit-mock 1"
    media_kinds = frozenset({"image"})

    def __init__(self, settings: MockEncoderSettings | None = None) -> None:
        self._settings = settings or MockEncoderSettings()
        self._is_closed = False

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Raises:
            EngineError: a picture has the size that the settings say to fail on.
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
    digest, size = _numbers(slot, "digest").copy(), size.copy()  # inputs are held by nobody then
    embeddings = (digest.astype(np.float32) / 255.0).reshape(slot.num_features, HIDDEN)
    num_bytes = embeddings.nbytes + digest.nbytes + size.nbytes
    return MediaFeatures(slot.num_features, embeddings, {"digest": digest, "size": size}, num_bytes)


def _numbers(slot: MediaSlot, name: str) -> Any:
    if name not in slot.inputs:
        raise EngineError(f"the mock vision encoder needs the input {name!r} of its own tokenizer")
    return np.from_dlpack(slot.inputs[name])
