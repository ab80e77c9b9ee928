"""The vision encoder: image features by one ONNX graph, pictures of one shape together.

How a graph wants its images is a :class:`vlmkit_onnx.vision.feeding.Feeding`; what the rows mean
to the decoder is the engine's business.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.prompt import ImageSlot
from vlmkit.protocols import ImageFeatures
from vlmkit_onnx.layout import Layout
from vlmkit_onnx.vision.feeding import AnyArray, Feeding, Floats, Pictures
from vlmkit_onnx.vision.names import FEATURES
from vlmkit_onnx.vision.own import feeding_of

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxVisionEncoder:
    """Computes image features with a vision graph.

    Args:
        layout: of the model; it has a vision graph.
        session: that graph, open.
        config: the content of the model's ``config.json``.
        fingerprint: of the model's files.
        max_batch_images: most pictures in one call of the graph; a tile is a picture.

    Raises:
        CheckpointError: the family is not known, or sees no images.
    """

    def __init__(
        self,
        layout: Layout,
        session: onnxruntime.InferenceSession,
        config: Mapping[str, Any],
        fingerprint: str,
        max_batch_images: int,
    ) -> None:
        if layout.vision is None:
            raise CheckpointError("the model has no vision tower")
        self._session: onnxruntime.InferenceSession | None = session
        self._feeding: Feeding = feeding_of(config)
        self._max_batch_images = max_batch_images
        self._dtypes = {node.name: FLOATS.get(node.type) for node in session.get_inputs()}
        self._outputs = [node.name for node in session.get_outputs()]
        self._identity = (
            f"onnx:{fingerprint}:{layout.vision.file.name}:{session.get_providers()[0]}:"
            f"onnxruntime-{onnxruntime.__version__}"
        )

    @property
    def identity(self) -> str:
        """Says what computes the features: weights, graph, device, library."""
        return self._identity

    def encode(self, slots: Sequence[ImageSlot]) -> list[ImageFeatures]:
        """Return the features of each image, in order.

        Raises:
            EngineError: an image's arrays do not fit the graph, or its rows are not as many as the
                prompt has places for.
        """
        pictures = [self._feeding.pictures(slot) for slot in slots]
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, image in enumerate(pictures):
            groups[image.group].append(index)
        features: dict[int, ImageFeatures] = {}
        for indices in groups.values():
            outputs = self._compute([pictures[i] for i in indices])
            for index, own in zip(indices, outputs, strict=True):
                features[index] = _features(slots[index], self._feeding.rows(slots[index], own))
        return [features[index] for index in range(len(slots))]

    def close(self) -> None:
        """Let go of the graph."""
        self._session = None

    def _compute(self, images: Sequence[Pictures]) -> Iterator[dict[str, Floats]]:
        """Compute images of one group, a bounded number of pictures at a time."""
        pixels = np.concatenate([image.pixels for image in images])
        most = self._max_batch_images
        calls = [
            self._run(self._feeding.inputs(pixels[start : start + most], images[0].group))
            for start in range(0, len(pixels), most)
        ]
        outputs = {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
        start = 0
        for image in images:
            stop = start + len(image.pixels)
            yield {name: array[start:stop] for name, array in outputs.items()}
            start = stop

    def _run(self, inputs: Mapping[str, AnyArray]) -> dict[str, Floats]:
        if self._session is None:
            raise EngineError("the vision encoder is closed")
        feeds = {name: self._cast(name, array) for name, array in inputs.items()}
        try:
            values = self._session.run(self._outputs, feeds)
        except Exception as error:  # its exceptions have no common parent
            raise EngineError("the vision graph does not take an image's arrays") from error
        return {
            name: np.asarray(value, np.float32)
            for name, value in zip(self._outputs, values, strict=True)
        }

    def _cast(self, name: str, array: AnyArray) -> AnyArray:
        dtype = self._dtypes.get(name)
        return np.ascontiguousarray(array if dtype is None else array.astype(dtype, copy=False))


def _features(slot: ImageSlot, rows: Mapping[str, Floats]) -> ImageFeatures:
    """Make one image's features of its own copy of the rows."""
    counts = {len(array) for array in rows.values()}
    if counts != {slot.num_features}:
        raise EngineError(
            f"the vision graph gave {sorted(counts)} rows for an image, and its prompt has "
            f"{slot.num_features} places"
        )
    own = {name: array.copy() for name, array in rows.items()}
    num_bytes = sum(array.nbytes for array in own.values())
    return ImageFeatures(slot.num_features, own.pop(FEATURES), own, num_bytes)
