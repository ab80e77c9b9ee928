"""The vision encoder: image features by one ONNX graph.

How images become the graph's inputs is a :class:`vlmkit_onnx.vision.feeding.Computation`; what the
rows mean to the decoder is the engine's business.
"""

import logging
from collections.abc import Mapping, Sequence
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
from vlmkit_onnx.sessions.session import giving_back, is_of_device, is_out_of_memory
from vlmkit_onnx.vision.batches import Batches
from vlmkit_onnx.vision.feeding import AnyArray, Computation, Floats
from vlmkit_onnx.vision.foreign import ForeignGraph
from vlmkit_onnx.vision.names import FEATURES
from vlmkit_onnx.vision.own import own_feeding

log = logging.getLogger(__name__)

DTYPES = FLOATS | INTEGERS | BOOLEANS


class OnnxVisionEncoder:
    """Computes image features with a vision graph.

    Args:
        graph: the vision tower.
        session: the same, open.
        max_batch_images: most pictures in one call of our own graphs; a tile is a picture.

    Raises:
        CheckpointError: the graph cannot be fed.
    """

    media_kinds = frozenset({"image"})

    def __init__(
        self,
        graph: VisionGraph,
        session: onnxruntime.InferenceSession,
        max_batch_images: int,
    ) -> None:
        self._session: onnxruntime.InferenceSession | None = session
        self._run_options = giving_back(session)  # a picture's tiles take as much as the weights
        self._computation = _computation(graph, session, max_batch_images)
        self._dtypes = {node.name: DTYPES.get(node.type) for node in session.get_inputs()}
        self._outputs = [node.name for node in session.get_outputs()]
        self._file = graph.file
        self._bound = graph.precision or "fp32"
        self._precision = graph.precision or stored_precision(read_header(graph.file))
        self._device = session.get_providers()[0]

    @cached_property
    def identity(self) -> str:
        """Says what computes the features: weights, graph, device, library. Reads the graph."""
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
            ImageError: the graph fails at one image, or its rows are not as many as the prompt has
                places for.
            EngineError: the device failed, or one of several images did.
            OutOfMemory: there is no room for them now.
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
        """Compute the images that the exporter kept beside the graph, if it kept any.

        Raises:
            CheckpointError: their rows are others here.
        """
        refuse_unlike(self.encode, self._file.parent, FEATURES, self._bound)

    def close(self) -> None:
        """Let go of the graph."""
        self._session = None

    def _run(self, inputs: Mapping[str, AnyArray]) -> dict[str, Floats]:
        if self._session is None:
            raise EngineError("the vision encoder is closed")
        feeds = {name: self._cast(name, array) for name, array in inputs.items()}
        try:
            values = self._session.run(self._outputs, feeds, self._run_options)
        except Exception as error:  # its exceptions have no common parent
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


class _RunFailed(EngineError):  # noqa: N818
    """A run of the graph failed.

    Attributes:
        is_of_device: whether the device failed, not what it was given.
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
    """Make one image's features of its own copy of the rows."""
    counts = {len(array) for array in rows.values()}
    if counts != {slot.num_features}:
        raise ImageError(
            f"the model's vision graph gives {sorted(counts)} features for this image, and its "
            f"prompt has {slot.num_features} places"
        )
    own = {name: array.copy() for name, array in rows.items()}
    num_bytes = sum(array.nbytes for array in own.values())
    return MediaFeatures(slot.num_features, own.pop(FEATURES), own, num_bytes)
