"""Exports a model's vision tower and projector, and checks the graph.

A graph is kept only if the vision encoder computes the same rows with it as the model's own code,
for other image sizes and batches than the traced ones.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from transformers import PreTrainedModel
from transformers.exporters.onnxruntime_fusions import fuse_for_onnxruntime

from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.export import missing_constants
from vlmkit_onnx.export.tower_quantize import quantize
from vlmkit_onnx.export.tower_rewrites import rewrite_tower
from vlmkit_onnx.export.towers.table import tower_of
from vlmkit_onnx.export.towers.tower import ImageInputs, Tower
from vlmkit_onnx.export.tracing import tracing
from vlmkit_onnx.export.vision_attention import vision_attention
from vlmkit_onnx.export.vision_check import VisionCheck
from vlmkit_onnx.folder.manifest import TowerPrecision
from vlmkit_onnx.vision.feeding import AnyArray
from vlmkit_onnx.vision.own import written

FILE = "vision.onnx"
DATA = f"{FILE}.data"
MAX_INLINE_BYTES = 256 * 2**20  # protobuf is limited to 2 GiB, and slow long before
OPSET = 21  # the first whose quantized activations have a scale for each row
SEED = 0

OnStage = Callable[[str], None]
log = logging.getLogger(__name__)


def export_vision(
    model: PreTrainedModel, folder: Path, precision: TowerPrecision | None, on_stage: OnStage
) -> TowerPrecision | None:
    """Write the graph of a model's vision tower and projector.

    Args:
        model: any, on the CPU; all but its language model in single precision.
        folder: for ``vision.onnx``, ``vision.onnx.data`` if it is large, and two images for the
            check at load.
        precision: of its linear layers; None means 8 bits if features stay near, else float32.
        on_stage: called with the name of each stage.

    Returns:
        The precision of the graph; None for a text model.

    Raises:
        CheckpointError: the family is unknown, its graph does not compute what the model does, or
            features exceed the bound of the requested precision.
    """
    base: Any = model.base_model
    if not hasattr(base, "get_image_features"):
        return None
    tower = tower_of(base)
    samples = tower.samples(np.random.default_rng(SEED))
    on_stage("tracing the vision tower")
    graph = trace(tower, example(tower, samples))
    rewrite_tower(graph)
    ClearMetadataAndDocStringPass()(graph)  # drops source paths of this machine
    graph.metadata_props.update(written(tower.feeding))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Path(made)
        _save(graph, place)
        on_stage("checking the vision tower")
        checked = VisionCheck(model, samples)
        checked.refuse_unlike(place / FILE, "fp32")
        kept = "fp32" if precision == "fp32" else _rounded(graph, place, checked, precision)
        checked.keep(place)
        for file in place.iterdir():
            shutil.move(file, folder / file.name)
    return kept


def _rounded(
    graph: onnx_ir.Model, place: Path, checked: VisionCheck, precision: TowerPrecision | None
) -> TowerPrecision:
    """Replace a graph by one of 8 bits if it passes the check; return the final precision."""
    with tempfile.TemporaryDirectory(dir=place) as made:
        quantize(graph)
        _save(graph, Path(made))
        try:
            checked.refuse_unlike(Path(made) / FILE, "w8a8")
        except CheckpointError as error:
            if precision is not None:
                raise
            log.warning("the vision tower stays in float32: %s", error)
            return "fp32"
        for file in (FILE, DATA):
            (place / file).unlink(missing_ok=True)
        for path in Path(made).iterdir():
            shutil.move(path, place / path.name)
    return "w8a8"


def example(tower: Tower, samples: Sequence[ImageInputs]) -> dict[str, AnyArray]:
    """Return the graph's inputs for two images of one size, as the encoder builds them."""
    first, second = (
        tower.feeding.pictures(MediaSlot(0, 0, b"", sample, 0)) for sample in samples[:2]
    )
    return tower.feeding.inputs(np.concatenate([first.pixels, second.pixels]), first.group)


def trace(tower: Tower, inputs: Mapping[str, AnyArray]) -> onnx_ir.Model:
    """Return the fused graph, which shares its weights with the modules.

    Raises:
        CheckpointError: the family's code cannot be traced.
    """
    try:
        with tracing(), torch.no_grad(), vision_attention(tower.module):
            graph = _trace(tower, inputs)
            fuse_for_onnxruntime(graph, "cpu")
    except VlmkitError:
        raise
    except Exception as error:  # the exporters raise many classes
        raise CheckpointError(
            "the model's vision tower cannot be traced",
            hint="`vlmkit --debug ...` shows where; please report the model type",
        ) from error
    return graph


def _trace(tower: Tower, arrays: Mapping[str, AnyArray]) -> onnx_ir.Model:
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    axes = {name: dict.fromkeys(tower.dynamic[name], torch.export.Dim.DYNAMIC) for name in inputs}
    module = tower.module.eval()
    program = torch.export.export(module, (), inputs, dynamic_shapes=axes, strict=False)
    program._guards_code = []  # noqa: SLF001 - else every pass proves them again, slowly
    made: Any = torch.onnx.export(
        program,
        (),
        kwargs=inputs,
        input_names=list(inputs),
        output_names=list(tower.outputs),
        opset_version=OPSET,
        verbose=False,
    )
    graph: onnx_ir.Model = made.model
    missing_constants.restore_constants(graph)
    return graph


def _save(graph: onnx_ir.Model, folder: Path) -> None:
    weights = graph.graph.initializers.values()
    num_bytes = sum(v.const_value.nbytes for v in weights if v.const_value is not None)
    outside = DATA if num_bytes > MAX_INLINE_BYTES else None
    onnx_ir.save(graph, folder / FILE, external_data=outside)
