"""Exports a checkpoint to a folder in vlmkit's own layout.

Writes into a temporary folder beside the target and renames it at the end, so that an interrupted
or refused export leaves nothing.
"""

import gc
import importlib.metadata
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.errors import CheckpointError, ConfigError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export import quantize, stored_form
from vlmkit_onnx.export.check import check
from vlmkit_onnx.export.decoder import export_decoder
from vlmkit_onnx.export.decoder_traits import DecoderTraits, inspect_decoder
from vlmkit_onnx.export.embedding import write_table
from vlmkit_onnx.export.refusal import OTHERWISE, mechanism_of
from vlmkit_onnx.export.sample import Sample, embeddings_of, make_sample
from vlmkit_onnx.export.stored_layers import StoredLayers
from vlmkit_onnx.export.views import Parts
from vlmkit_onnx.export.vision import FILE as VISION, export_vision
from vlmkit_onnx.folder import manifest
from vlmkit_onnx.folder.manifest import (
    TOWER_BESIDE,
    Manifest,
    PlainPrecision,
    Precision,
    Stored,
    TowerPrecision,
)
from vlmkit_onnx.prompts.families import family_of
from vlmkit_torch.loading.reading import read_config, read_model

OnStage = Callable[[str], None]
log = logging.getLogger(__name__)

DECODER = "decoder.onnx"
PARTICIPANTS = (
    "vlmkit-onnx",
    "vlmkit-torch",
    "torch",
    "transformers",
    "onnxscript",
    "onnx-ir",
    "onnxruntime",
)
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "chat_template.j*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*processor_config.json",
    "LICENSE*",
    "modules.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
)
BATCH_INVARIANT: frozenset[Precision] = frozenset({"fp32", "w8a8", "int8", "int4"})


class _Vision(NamedTuple):
    """Whether to export the vision tower, and its precision; None means as few bits as fit."""

    is_wanted: bool
    precision: TowerPrecision | None


def export(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision | Stored,
    on_stage: OnStage,
    *,
    vision_precision: TowerPrecision | None = None,
    plain_precision: PlainPrecision = "fp32",
    with_tower: bool = True,
    complete: Callable[[Path], None] = lambda _: None,
) -> Manifest:
    """Write a checkpoint as ONNX.

    Args:
        checkpoint: a safetensors checkpoint.
        folder: the target; must be absent or empty.
        precision: of the decoder's linear layers. ``stored`` takes the integers of a quantized
            checkpoint.
        on_stage: called with the name of each stage.
        vision_precision: of the vision tower's linear layers. None means few bits if the decoder
            has few and features stay near, else float32.
        plain_precision: with ``stored``, of the decoder's layers that the checkpoint has plain.
        with_tower: whether to export the vision tower, too.
        complete: called with the folder before it gets its name; may write more files into it.

    Raises:
        CheckpointError: the checkpoint is broken, of a family that cannot be exported, or its
            integers cannot be used.
        ConfigError: the folder is not empty.
    """
    _refuse_full(folder)
    target: Precision | StoredLayers
    if precision == "stored":
        stored_form.refuse(checkpoint)
        target = StoredLayers(checkpoint, plain_precision)
    else:
        target = precision
    with _temporary_sibling(folder) as place:
        vision = _Vision(with_tower, vision_precision or TOWER_BESIDE.get(precision))
        made = _write(checkpoint, place, target, vision, on_stage)
        manifest.write(place, made)
        for path in _companions(checkpoint.path):
            copy = place / path.relative_to(checkpoint.path)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
        complete(place)
        _move_to_target(place, folder)
    return made


def export_tower(
    checkpoint: Checkpoint, folder: Path, precision: TowerPrecision | None, on_stage: OnStage
) -> None:
    """Write only the vision tower of a checkpoint; arguments and errors as for :func:`export`.

    Raises:
        CheckpointError: also if the model has none.
    """
    _refuse_full(folder)
    with _temporary_sibling(folder) as place:
        on_stage("reading weights")
        family_of(checkpoint.config)  # refuses unknown families before weights are read
        model = load(checkpoint)
        with _refusing_unknown_structure(checkpoint):
            parts = Parts(model)
        _cast_towers_to_float32(model, parts)
        if export_vision(model, place, precision, on_stage) is None:
            raise CheckpointError(f"model {checkpoint.name!r} has no vision tower")
        _move_to_target(place, folder)


def load(checkpoint: Checkpoint) -> PreTrainedModel:
    """Return the model on the CPU, in the types of its files, with mapped weights.

    Reads safetensors only, runs no remote code and uses no network. The steps that need another
    type convert one module at a time.

    Raises:
        CheckpointError: the family cannot be exported, or the checkpoint is broken.
        EngineError: there is too little memory.
    """
    return read_model(checkpoint, exportable_config(checkpoint), "auto")


def exportable_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Return a checkpoint's configuration.

    Raises:
        CheckpointError: its decoder cannot be exported.
    """
    config = read_config(checkpoint)
    if reason := mechanism_of(config.get_text_config().to_dict()):
        raise CheckpointError(
            f"model {checkpoint.name!r} cannot be exported: {reason}", hint=OTHERWISE
        )
    return config


def _refuse_full(folder: Path) -> None:
    """Refuse, before hours of work, a target that the finished folder cannot replace."""
    if folder.is_symlink() or (folder.exists() and folder.samefile(Path.cwd())):
        what = "a symbolic link" if folder.is_symlink() else "the current folder"
        raise ConfigError(
            f"{str(folder)!r} is {what}, which a finished export cannot replace",
            hint="name a folder that is absent or empty",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"folder {str(folder)!r} is not empty", hint="name a folder that is absent or empty"
        )


def _write(
    checkpoint: Checkpoint,
    place: Path,
    target: Precision | StoredLayers,
    vision: "_Vision",
    on_stage: OnStage,
) -> Manifest:
    on_stage("reading weights")
    exportable_config(checkpoint)  # first, because the decoder's objection is the better reason
    visibility = family_of(checkpoint.config).visibility
    model = load(checkpoint)
    with _refusing_unknown_structure(checkpoint):
        traits = inspect_decoder(Parts(model), visibility)
    table = write_table(Parts(model), place)
    _cast_towers_to_float32(model, Parts(model))
    tower = export_vision(model, place, vision.precision, on_stage) if vision.is_wanted else None
    parts = Parts(model)
    del model  # frees the towers
    with _refusing_unknown_structure(checkpoint):
        sample, chooses = _export_decoder(parts, traits, place / DECODER, target, on_stage)
    parts.discard()  # the tracers keep their last graph, and the check needs memory
    del parts
    gc.collect()
    on_stage("checking")
    precision = target.precision if isinstance(target, StoredLayers) else target
    difference = check(place / DECODER, sample, precision, chooses=chooses)
    log.info("decoder of %r differs by %.2g of its largest number", checkpoint.name, difference)
    return Manifest(
        model_type=checkpoint.model_type,
        precision=precision,
        max_sequence_tokens=traits.max_sequence_tokens,
        is_batch_invariant=isinstance(target, StoredLayers) or target in BATCH_INVARIANT,
        decoder=DECODER,
        embeddings=table,
        vision=VISION if tower else None,
        vision_precision=tower or "fp32",
        sliding_window=traits.window if traits.takes_bias else None,
        made_with={name: importlib.metadata.version(name) for name in PARTICIPANTS},
    )


def _export_decoder(
    parts: Parts,
    traits: DecoderTraits,
    path: Path,
    precision: Precision | StoredLayers,
    on_stage: OnStage,
) -> tuple[Sample, bool]:
    """Write the graph; return the sample for its check, and whether it selects experts."""
    embeddings = embeddings_of(parts)
    parts.drop_embedding()
    on_stage("converting layers")
    quantize.convert(parts, precision, lambda done, of: on_stage(f"converting layers {done}/{of}"))
    sample = make_sample(parts, traits, embeddings)
    on_stage("tracing the decoder")
    return sample, export_decoder(parts, traits, path)


@contextmanager
def _refusing_unknown_structure(checkpoint: Checkpoint) -> Iterator[None]:
    """Refuse a family whose code has another structure than the exporter expects.

    Raises:
        CheckpointError: the family's code raises an unexpected error.
    """
    try:
        yield
    except (VlmkitError, MemoryError, OSError):
        raise
    except Exception as error:  # a family's code may raise anything
        raise CheckpointError(
            f"model type {checkpoint.model_type!r} is built in a way that the exporter does not "
            "know",
            hint=f"{OTHERWISE}; please report the model type",
        ) from error


def _cast_towers_to_float32(model: Any, parts: Parts) -> None:
    """Convert all modules but decoder and head: towers are small, and are traced in float32."""
    kept = {id(module) for part in (parts.decoder, parts.head) for module in part.modules()}
    for module in model.modules():
        if id(module) not in kept:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.float()


def _move_to_target(place: Path, folder: Path) -> None:
    """Move a finished folder to its target, with the permissions of new files there."""
    if folder.exists():
        folder.rmdir()
    folder.mkdir()
    allowed = folder.stat().st_mode & 0o777
    for path in place.rglob("*"):
        path.chmod(allowed if path.is_dir() else allowed & 0o666)
    place.chmod(allowed)
    folder.rmdir()  # Windows cannot rename a folder to an existing one
    place.rename(folder)


def _companions(folder: Path) -> Iterator[Path]:
    """Yield the small files that tokenizers and image processors read."""
    seen = {path for pattern in COMPANIONS for path in folder.glob(pattern) if path.is_file()}
    yield from sorted(seen)


@contextmanager
def _temporary_sibling(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder``; remove it afterwards unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
