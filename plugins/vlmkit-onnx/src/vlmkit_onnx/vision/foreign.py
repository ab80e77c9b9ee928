"""Feeds vision graphs of other exporters with those of an image's arrays that a graph names.

Such a graph does all preprocessing itself. The axes of its output differ from graph to graph.
Families that assemble tiles behind the tower return another number of rows than their prompts have
placeholders, and are refused.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.feeding import AnyArray, Floats, Run, array_of
from vlmkit_onnx.vision.names import FEATURES

PIXELS = "pixel_values"
ARRAYS: Mapping[str, str] = {
    PIXELS: PIXELS,
    "pixel_attention_mask": "pixel_attention_mask",
    "image_attention_mask": "pixel_attention_mask",
    "image_sizes": "image_sizes",
    "spatial_shapes": "spatial_shapes",
    "grid_thw": "image_grid_thw",
    "image_grid_thw": "image_grid_thw",
}
"""Processors' names of arrays, by the names of inputs."""


class ForeignGraph:
    """Runs the graph once for each image, with the processor's arrays.

    Args:
        num_axes: of each input of the graph.
        outputs: of the graph.
        names: the graph's names of inputs and outputs that differ from vlmkit's.

    Raises:
        CheckpointError: the graph has an unsupported input, or returns no image features.
    """

    def __init__(
        self, num_axes: Mapping[str, int], outputs: Sequence[str], names: Mapping[str, str]
    ) -> None:
        words = {name: word for word, name in names.items()}
        self._num_axes = num_axes
        self._arrays = {name: ARRAYS.get(words.get(name, name), "") for name in num_axes}
        self._features = names.get(FEATURES, FEATURES)
        for name, array in self._arrays.items():
            if not array:
                raise CheckpointError(f"the vision graph takes {name!r}, which is not supported")
        if PIXELS not in self._arrays.values() or self._features not in outputs:
            raise CheckpointError(
                f"the vision graph must take {PIXELS!r} and give {self._features!r}"
            )

    def compute(self, slots: Sequence[MediaSlot], run: Run) -> list[dict[str, Floats]]:
        """Return each image's rows; see :class:`vlmkit_onnx.vision.feeding.Computation`."""
        return [self._compute(slot, run) for slot in slots]

    def _compute(self, slot: MediaSlot, run: Run) -> dict[str, Floats]:
        inputs = {
            name: _with_axes(array_of(slot, array), self._num_axes[name], name)
            for name, array in self._arrays.items()
        }
        rows = run(inputs)[self._features]
        return {FEATURES: rows.reshape(-1, rows.shape[-1])}


def _with_axes(array: AnyArray, num_axes: int, name: str) -> AnyArray:
    """Add or remove leading axes of size one, for a batch of one image.

    Raises:
        EngineError: an axis that must be removed has another size.
    """
    missing = num_axes - array.ndim
    if missing > 0:
        return array[(np.newaxis,) * missing]
    if any(size != 1 for size in array.shape[: max(-missing, 0)]):
        raise EngineError(f"{name!r} of an image has {array.shape} values, too many axes")
    return array.reshape(array.shape[-missing:]) if missing else array
