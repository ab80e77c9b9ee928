"""The media encoder: images of slots to features, by the projector of a model.

Implements ``vlmkit.interfaces.media_encoder.MediaEncoder``.
"""

from collections.abc import Sequence as Seq

import numpy as np

from vlmkit.errors import EngineError, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.content import file_digest
from vlmkit_llama.layout import PIXELS
from vlmkit_llama.projector import Projector


class LlamaEncoder:
    """Encodes the images of one model, one after the other.

    Args:
        projector: computes the features; closed with this encoder.
        processor: what features depend on beside the file.
        precision: for display.
    """

    def __init__(self, projector: Projector, processor: str, precision: str) -> None:
        self._projector, self._processor = projector, processor
        self.precision = precision

    @property
    def identity(self) -> str:
        """What computes the features: file, library and precision. Reads the file once."""
        (digest,) = file_digest(self._projector.file).values()
        return f"{self._processor}:{digest}"

    @property
    def media_kinds(self) -> frozenset[str]:
        """Images alone."""
        return frozenset({"image"})

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Raises:
            ImageError: the library rejects an image.
            RequestError: another tokenizer prepared an image.
            EngineError: the library returns another number of rows than the prompt has places, or
                values that are not finite, which would end the engine.
        """
        return [self._encoded(slot) for slot in slots]

    def close(self) -> None:
        """Free the weights."""
        self._projector.close()

    def _encoded(self, slot: MediaSlot) -> MediaFeatures:
        if PIXELS not in slot.inputs:
            raise RequestError("another tokenizer prepared this image")
        rows = self._projector.encode(np.asarray(slot.inputs[PIXELS]))
        if len(rows) != slot.num_features:
            raise EngineError(
                f"the library llama.cpp returns {len(rows)} rows for an image with "
                f"{slot.num_features} places"
            )
        if not np.isfinite(rows).all():
            raise EngineError("the vision tower computes values that are not finite")
        return MediaFeatures(len(rows), rows, num_bytes=rows.nbytes)
