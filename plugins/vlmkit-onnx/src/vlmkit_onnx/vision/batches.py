"""Computes images with our own exporter's graphs: pictures of one group together.

Pictures are taken over all images of a call, a bounded number at a time, so that neither many
images nor one of many tiles takes more memory than that.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.feeding import Feeding, Floats, Group, Pictures, Run


class Batches:
    """Puts pictures into calls and rows back to their images.

    Args:
        feeding: how the graph is fed.
        max_pictures: most in one call.
    """

    def __init__(self, feeding: Feeding, max_pictures: int) -> None:
        self._feeding = feeding
        self._max_pictures = max_pictures

    def compute(self, slots: Sequence[MediaSlot], run: Run) -> list[dict[str, Floats]]:
        """Return each image's rows by name; see :class:`vlmkit_onnx.vision.feeding.Computation`."""
        images = [self._feeding.pictures(slot) for slot in slots]
        groups: defaultdict[Group, list[int]] = defaultdict(list)
        for index, image in enumerate(images):
            groups[image.group].append(index)
        rows: dict[int, dict[str, Floats]] = {}
        for indices in groups.values():
            outputs = self._outputs([images[i] for i in indices], run)
            for index, own in zip(indices, outputs, strict=True):
                rows[index] = self._feeding.rows(slots[index], own)
        return [rows[index] for index in range(len(slots))]

    def _outputs(self, images: Sequence[Pictures], run: Run) -> Iterator[dict[str, Floats]]:
        """Yield each image's part of the graph's outputs, for images of one group."""
        pixels = np.concatenate([image.pixels for image in images])
        most = self._max_pictures
        calls = [
            run(self._feeding.inputs(pixels[start : start + most], images[0].group))
            for start in range(0, len(pixels), most)
        ]
        outputs = {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
        start = 0
        for image in images:
            stop = start + len(image.pixels)
            yield {name: array[start:stop] for name, array in outputs.items()}
            start = stop
