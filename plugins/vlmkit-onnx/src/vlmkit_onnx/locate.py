"""From a checkpoint to the graphs that run it: those beside it, or those exported once for it."""

from collections.abc import Callable

from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import CheckpointError
from vlmkit_onnx import export_cache
from vlmkit_onnx.layout import Layout, VisionGraph, own_layout
from vlmkit_onnx.manifest import Precision
from vlmkit_onnx.refusal import kind_of

OnStage = Callable[[str], None]


def locate(
    checkpoint: Checkpoint,
    precision: Precision,
    variant: str | None,
    on_stage: OnStage,
) -> Layout:
    """Return the parts of a model; a safetensors checkpoint is exported, once, if need be.

    Args:
        checkpoint: the model's files.
        precision: of an export.
        variant: which files of an onnx-community folder.
        on_stage: told the stages of an export.

    Raises:
        CheckpointError: the folder holds nothing that can run, or its files are broken.
    """
    kind = kind_of(checkpoint)
    if kind == "vlmkit":
        return own_layout(checkpoint, checkpoint.path)
    if kind == "genai":
        from vlmkit_onnx.genai import genai_layout

        return genai_layout(checkpoint)
    if kind == "community":
        from vlmkit_onnx.community import community_layout

        return community_layout(checkpoint, variant)
    if kind == "safetensors":
        folder = export_cache.cached_export(checkpoint, precision, on_stage)
        return own_layout(checkpoint, folder)
    raise CheckpointError(
        f"model {checkpoint.name!r} has no ONNX graphs and no *.safetensors weights"
    )


def locate_tower(checkpoint: Checkpoint, variant: str | None, on_stage: OnStage) -> VisionGraph:
    """Return the vision tower of a model; arguments and errors as for :func:`locate`.

    Raises:
        CheckpointError: besides, there is none.
    """
    if kind_of(checkpoint) == "safetensors":
        folder = export_cache.cached_tower(checkpoint, on_stage)
        return VisionGraph(folder / export_cache.VISION, is_own=True)
    graph = locate(checkpoint, "fp32", variant, on_stage).vision
    if graph is None:
        raise CheckpointError(f"model {checkpoint.name!r} has no graph of a vision tower")
    return graph
