"""The vision encoder: computes image features with one ONNX graph.

A :class:`vlmkit_onnx.vision.feeding.Computation` converts images to the graph's inputs. Does not
interpret the rows; the engine does.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from vlmkit.errors import EngineError, ImageError, OutOfMemory
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.traces import trace_of
from vlmkit_onnx.folder.graph_facts import stored_precision
from vlmkit_onnx.folder.graph_header import read_header
from vlmkit_onnx.folder.layout import VisionGraph
from vlmkit_onnx.self_checks.export_sample import refuse_unlike
from vlmkit_onnx.sessions.node_types import BOOLEANS, FLOATS, INTEGERS
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.sessions.session import is_of_device, is_out_of_memory, shrinking_arena
from vlmkit_onnx.vision.feeding import (
    AnyArray,
    Computation,
    Feeding,
    Floats,
    Group,
    Pictures,
    Run,
)
from vlmkit_onnx.vision.foreign import ForeignGraph
from vlmkit_onnx.vision.names import FEATURES
from vlmkit_onnx.vision.own import own_feeding

log = logging.getLogger(__name__)

DTYPES = FLOATS | INTEGERS | BOOLEANS


class OnnxVisionEncoder:
    """Computes image features with a vision graph.

    Args:
        graph: the vision tower.
        session: of its graph.
        max_batch_images: most pictures in one call of vlmkit's own graphs; a tile is a picture.

    Raises:
        CheckpointError: the graph has unsupported inputs or outputs.
    """

    media_kinds = frozenset({"image"})

    def __init__(
        self,
        graph: VisionGraph,
        session: onnxruntime.InferenceSession,
        max_batch_images: int,
    ) -> None:
        self._session: onnxruntime.InferenceSession | None = session
        self._run_options = shrinking_arena(session)  # the tiles of an image take much memory
        self._computation = _computation(graph, session, max_batch_images)
        self._dtypes = {node.name: DTYPES.get(node.type) for node in session.get_inputs()}
        self._outputs = [node.name for node in session.get_outputs()]
        self._file = graph.file
        self._bound = graph.precision or "fp32"
        self._precision = graph.precision or stored_precision(read_header(graph.file))
        self._device = session.get_providers()[0]

    @cached_property
    def identity(self) -> str:
        """What computes the features: weights, graph, device, library. Reads the graph."""
        fingerprint = Checkpoint(self._file.name, self._file.parent).fingerprint
        return (
            f"onnx:{fingerprint}:{self._file.name}:{self._device}:"
            f"onnxruntime-{onnxruntime.__version__}"
        )

    @property
    def precision(self) -> str:
        """How the tower's linear layers are stored and computed."""
        return self._precision

    def encode(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Raises:
            ImageError: the graph fails at one image, or returns another number of rows than the
                prompt has placeholders.
            EngineError: the device failed, or one of several images did.
            OutOfMemory: there is too little memory now.
        """
        try:
            rows = self._computation.compute(slots, self._run)
        except _RunFailed as error:
            if len(slots) > 1 or error.is_of_device:
                raise
            log.warning("the vision graph failed at one image\n%s", trace_of(error))
            raise ImageError("the model's vision graph cannot take this image") from error
        return [_features(slot, own) for slot, own in zip(slots, rows, strict=True)]

    def refuse_unlike_export(self) -> None:
        """Compute the sample images that the exporter wrote beside the graph, if there are any.

        Raises:
            CheckpointError: the rows differ from the exporter's.
        """
        refuse_unlike(self.encode, self._file.parent, FEATURES, self._bound)

    def close(self) -> None:
        """Release the graph."""
        self._session = None

    def _run(self, inputs: Mapping[str, AnyArray]) -> dict[str, Floats]:
        if self._session is None:
            raise EngineError("the vision encoder is closed")
        feeds = {name: self._cast(name, array) for name, array in inputs.items()}
        try:
            values = self._session.run(self._outputs, feeds, self._run_options)
        except Exception as error:  # its exceptions have no common base class
            if is_out_of_memory(error):
                raise OutOfMemory("the images of this request") from error
            raise _RunFailed(is_of_device=is_of_device(error)) from error
        return {
            name: np.asarray(value, np.float32)
            for name, value in zip(self._outputs, values, strict=True)
        }

    def _cast(self, name: str, array: AnyArray) -> AnyArray:
        dtype = self._dtypes.get(name)
        return np.ascontiguousarray(array if dtype is None else array.astype(dtype, copy=False))


class Batches:
    """Computes images with vlmkit's own graphs: pictures of one group in one call.

    Groups pictures of all images of a call, a limited number at a time, so that memory is bounded
    for many images and for images of many tiles.

    Args:
        feeding: of the graph.
        max_pictures: most pictures in one call.
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


class _RunFailed(EngineError):  # noqa: N818
    """A run of the graph failed.

    Attributes:
        is_of_device: whether the device failed, not the graph with its inputs.
    """

    def __init__(self, *, is_of_device: bool) -> None:
        super().__init__("the vision graph failed")
        self.is_of_device = is_of_device


def _computation(
    graph: VisionGraph, session: onnxruntime.InferenceSession, max_batch_images: int
) -> Computation:
    if graph.is_own:
        feeding = own_feeding(session.get_modelmeta().custom_metadata_map)
        return Batches(feeding, max_batch_images)
    num_axes = {node.name: len(node.shape) for node in session.get_inputs()}
    outputs = [node.name for node in session.get_outputs()]
    return ForeignGraph(num_axes, outputs, graph.names)


def _features(slot: MediaSlot, rows: Mapping[str, Floats]) -> MediaFeatures:
    """Return one image's features, with a copy of its rows."""
    counts = {len(array) for array in rows.values()}
    if counts != {slot.num_features}:
        raise ImageError(
            f"the model's vision graph gives {sorted(counts)} features for this image, and its "
            f"prompt has {slot.num_features} places"
        )
    own = {name: array.copy() for name, array in rows.items()}
    num_bytes = sum(array.nbytes for array in own.values())
    return MediaFeatures(slot.num_features, own.pop(FEATURES), own, num_bytes)
