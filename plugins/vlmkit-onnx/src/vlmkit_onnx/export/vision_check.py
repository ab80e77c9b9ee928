"""Compares an exported vision graph, run by the vision encoder, with the model's own code."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.export.deepstack import numbered_layers
from vlmkit_onnx.export.towers.tower import ImageInputs
from vlmkit_onnx.folder.layout import VisionGraph
from vlmkit_onnx.folder.manifest import TowerPrecision
from vlmkit_onnx.self_checks import export_sample
from vlmkit_onnx.self_checks.export_sample import BOUNDS
from vlmkit_onnx.sessions.session import open_tower
from vlmkit_onnx.settings import ComputeSettings
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder
from vlmkit_onnx.vision.names import DEEPSTACK, FEATURES

MAX_BATCH_IMAGES = 8
KEPT = (0, -1)  # of the samples; they differ in size if the family allows several


class VisionCheck:
    """The rows of a few images by the model's own code, and the difference of graphs from them.

    Args:
        model: its vision side in single precision.
        samples: a processor's arrays, image by image.
    """

    def __init__(self, model: PreTrainedModel, samples: Sequence[ImageInputs]) -> None:
        self._model = model
        self._samples = samples
        self._expected = [reference(model, sample) for sample in samples]

    def refuse_unlike(self, file: Path, precision: TowerPrecision) -> float:
        """Compute all images in one batch with a graph.

        Returns:
            The largest difference, in the precision's own measure.

        Raises:
            CheckpointError: the difference exceeds the bound of that precision.
        """
        bound = BOUNDS[precision]
        try:
            worst = max(self._differences(file, precision))
        except EngineError as error:
            raise self._wrong("does not run") from error
        if not worst <= bound.at_export:  # not-a-number fails too
            raise self._wrong(f"is {worst:.2g} off, where {bound.at_export:g} is the most")
        return worst

    def keep(self, folder: Path) -> None:
        """Write two images and their rows into a folder, for the check when its graph loads."""
        export_sample.write(folder, [(self._samples[i], self._expected[i]) for i in KEPT])

    def _differences(self, file: Path, precision: TowerPrecision) -> Iterator[float]:
        slots = [
            MediaSlot(0, len(rows[FEATURES]), b"", sample, len(rows[FEATURES]))
            for sample, rows in zip(self._samples, self._expected, strict=True)
        ]
        session = open_tower(file, ComputeSettings())
        graph = VisionGraph(file, is_own=True, precision=precision)
        encoder = OnnxVisionEncoder(graph, session, MAX_BATCH_IMAGES)
        for features, wanted in zip(encoder.encode(slots), self._expected, strict=True):
            made = {FEATURES: features.embeddings, **features.extra}
            yield export_sample.difference(made, wanted, precision)
        encoder.close()

    def _wrong(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"the exported vision tower of {self._model.config.model_type!r} does not compute what "
            f"the model computes, so it was not kept: it {how}",
            hint="--vision-precision fp32, or media_encoder.precision, keeps a tower as it is; if "
            "it was that, please report the model type",
        )


def reference(model: PreTrainedModel, sample: ImageInputs) -> dict[str, NDArray[np.float32]]:
    """Return one image's rows by the model's own code, by the graph's names."""
    take: Any = model.base_model.get_image_features
    names = inspect.signature(take).parameters
    inputs = {name: torch.from_numpy(sample[name]) for name in sample if name in names}
    with torch.no_grad():
        output = take(**inputs, return_dict=True)
    levels = output.get("deepstack_features") or ()
    if numbered_layers(model.config):  # each with its layer; the last one of a layer counts
        levels = [rows for _, rows in sorted(dict(levels).items())]
    named = {f"{DEEPSTACK}{number}": _rows(level) for number, level in enumerate(levels)}
    if (pooled := output.get("pooler_output")) is not None:
        return {FEATURES: _rows(pooled), **named}
    return {FEATURES: np.zeros_like(named[f"{DEEPSTACK}0"]), **named}


def _rows(value: torch.Tensor | Iterable[torch.Tensor]) -> NDArray[np.float32]:
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    array: NDArray[np.float32] = rows.float().numpy()
    return array
