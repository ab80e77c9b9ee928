"""Finds the graphs that run a checkpoint: those beside it, or those exported for it."""

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export_once import OnStage, cached_export, cached_tower
from vlmkit_onnx.folder import export_cache
from vlmkit_onnx.folder.default_precision import default_precision
from vlmkit_onnx.folder.layout import Layout, VisionGraph, own_layout, own_tower
from vlmkit_onnx.folder.manifest import Precision, TowerPrecision
from vlmkit_onnx.folder.refusal import Kind, kind_of


def locate(
    checkpoint: Checkpoint,
    precision: Precision | None,
    variant: str | None,
    on_stage: OnStage,
) -> Layout:
    """Return the parts of a model; export a safetensors checkpoint if needed.

    Args:
        checkpoint: the model's files.
        precision: by the settings; None accepts graphs of any precision, and exports in eight
            bits, or with the integers of a quantized checkpoint.
        variant: which files of an onnx-community folder.
        on_stage: called with the stages of an export.

    Raises:
        CheckpointError: the folder holds nothing that can run, or its files are broken.
        ConfigError: its graphs have another precision.
    """
    layout = present(checkpoint, precision, variant)
    if layout is not None:
        return layout
    folder = cached_export(checkpoint, precision or default_precision(checkpoint), on_stage)
    return own_layout(checkpoint, folder)


def present(
    checkpoint: Checkpoint, precision: Precision | None, variant: str | None
) -> Layout | None:
    """Return the parts of a model whose graphs exist; None if they are still to be exported.

    Arguments and errors as for :func:`locate`.
    """
    kind = kind_of(checkpoint)
    if kind == "weights":
        folder = export_cache.finished(checkpoint, precision or default_precision(checkpoint))
        return None if folder is None else own_layout(checkpoint, folder)
    layout = _layout(checkpoint, kind, variant)
    if precision not in (None, layout.precision):
        raise ConfigError(
            f"engine.precision is {precision!r}, and the graphs of model {checkpoint.name!r} are "
            f"{layout.precision!r}",
            hint="leave it out, or `vlmkit export` the model's safetensors in that precision",
        )
    return layout


def _layout(checkpoint: Checkpoint, kind: Kind | None, variant: str | None) -> Layout:
    if kind == "vlmkit":
        return own_layout(checkpoint, checkpoint.path)
    if kind == "genai":
        from vlmkit_onnx.folder.genai import genai_layout

        return genai_layout(checkpoint)
    if kind == "community":
        from vlmkit_onnx.folder.community import community_layout

        return community_layout(checkpoint, variant)
    raise CheckpointError(
        f"model {checkpoint.name!r} has no ONNX graphs and no *.safetensors weights"
    )


def locate_tower(
    checkpoint: Checkpoint,
    precision: TowerPrecision | None,
    variant: str | None,
    on_stage: OnStage,
    *,
    default: TowerPrecision | None = None,
) -> VisionGraph:
    """Return the vision tower of a model; arguments and errors as for :func:`locate`.

    Args:
        checkpoint: see there.
        precision: by the settings; None accepts any precision.
        variant: see there.
        on_stage: see there.
        default: precision of an export if the settings state none; None means as few bits as fit.

    Raises:
        CheckpointError: also if the model has no tower.
        ConfigError: the tower has another precision.
    """
    if kind_of(checkpoint) == "weights":
        folder = cached_tower(checkpoint, precision or default, on_stage)
        return own_tower(folder / export_cache.VISION)
    graph = locate(checkpoint, None, variant, on_stage).vision
    if graph is None:
        raise CheckpointError(f"model {checkpoint.name!r} has no graph of a vision tower")
    if precision not in (None, graph.precision):
        known = "not known" if graph.precision is None else repr(graph.precision)
        raise ConfigError(
            f"media_encoder.precision is {precision!r}, and that of the vision tower of model "
            f"{checkpoint.name!r} is {known}",
            hint="leave it out, or `vlmkit export` the model's safetensors with "
            f"--vision-precision {precision}",
        )
    return graph
