"""Compares an exported vision graph, run as it will be run, with the model's own code."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.seams.prompt import MediaSlot
from vlmkit_onnx.export.deepstack import numbered_layers
from vlmkit_onnx.export.towers.tower import ImageInputs
from vlmkit_onnx.folder.layout import VisionGraph
from vlmkit_onnx.sessions.session import open_session
from vlmkit_onnx.settings import ComputeSettings
from vlmkit_onnx.trials import exported
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder
from vlmkit_onnx.vision.names import DEEPSTACK, FEATURES

TOLERANCE = 1e-4  # of the largest value of an image's rows
MAX_BATCH_IMAGES = 8
KEPT = (0, -1)  # of the samples; they differ in size where they can


def check_vision(
    model: PreTrainedModel,
    file: Path,
    samples: Sequence[ImageInputs],
    kept_in: Path | None = None,
) -> float:
    """Compare a graph with the model, for all images in one batch.

    Args:
        model: its vision side in single precision.
        file: the graph.
        samples: a processor's arrays, image by image.
        kept_in: where two images and their rows are kept for whoever loads the graph.

    Returns:
        The largest difference, relative to an image's largest value.

    Raises:
        CheckpointError: they differ.
    """
    expected = [reference(model, sample) for sample in samples]
    slots = [
        MediaSlot(0, len(rows[FEATURES]), b"", sample, len(rows[FEATURES]))
        for sample, rows in zip(samples, expected, strict=True)
    ]
    try:
        worst = max(_differences(file, slots, expected))
    except EngineError as error:
        raise _wrong(model) from error
    if not worst <= TOLERANCE:  # not-a-number fails too
        raise _wrong(model)
    if kept_in is not None:
        exported.write(kept_in, [(samples[i], expected[i]) for i in KEPT])
    return worst


def reference(model: PreTrainedModel, sample: ImageInputs) -> dict[str, NDArray[np.float32]]:
    """Return what the model's own code makes of one image: rows by the graph's names."""
    take: Any = model.base_model.get_image_features
    names = inspect.signature(take).parameters
    inputs = {name: torch.from_numpy(sample[name]) for name in sample if name in names}
    with torch.no_grad():
        output = take(**inputs, return_dict=True)
    levels = output.get("deepstack_features") or ()
    if numbered_layers(model.config):  # each with its layer, of which the last one counts
        levels = [rows for _, rows in sorted(dict(levels).items())]
    named = {f"{DEEPSTACK}{number}": _rows(level) for number, level in enumerate(levels)}
    if (pooled := output.get("pooler_output")) is not None:
        return {FEATURES: _rows(pooled), **named}
    return {FEATURES: np.zeros_like(named[f"{DEEPSTACK}0"]), **named}


def _differences(
    file: Path,
    slots: Sequence[MediaSlot],
    expected: Sequence[dict[str, NDArray[np.float32]]],
) -> Iterator[float]:
    session = open_session(file, ComputeSettings())
    encoder = OnnxVisionEncoder(VisionGraph(file, is_own=True), session, MAX_BATCH_IMAGES)
    for features, rows in zip(encoder.encode(slots), expected, strict=True):
        made = {FEATURES: features.embeddings, **features.extra}
        if made.keys() != rows.keys():
            yield float("inf")
            continue
        for name, wanted in rows.items():
            size = max(float(np.abs(wanted).max()), 1e-6)
            yield float(np.abs(np.asarray(made[name]) - wanted).max()) / size
    encoder.close()


def _rows(value: torch.Tensor | Iterable[torch.Tensor]) -> NDArray[np.float32]:
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    array: NDArray[np.float32] = rows.float().numpy()
    return array


def _wrong(model: PreTrainedModel) -> CheckpointError:
    return CheckpointError(
        f"the exported vision tower of {model.config.model_type!r} does not compute what the model "
        "computes, so it was not kept"
    )
