"""Where and how precisely a model computes: one serves engine and encoder of a pipeline.

How it is run is not decided here.
"""

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.loading.mapped_files import MappedFiles
from vlmkit_torch.loading.reading import auto_class, read_config, read_model
from vlmkit_torch.settings import ComputeSettings
from vlmkit_torch.support import quantization, sizing


@dataclass(slots=True)
class LoadedModel:
    """A model in memory, ready to compute, without a cache.

    Attributes:
        model: the model.
        is_open: whoever loaded it does not mind where and how precisely it computes.
        cache_bytes: memory that is left for keys and values; None where the device is asked.
    """

    model: PreTrainedModel
    is_open: bool = False
    cache_bytes: int | None = None

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """How precisely it computes."""
        return self.model.dtype


def shared_model(context: BuildContext, *, leads: bool) -> LoadedModel:
    """Return the pipeline's model for these settings, loading it at the first call.

    The engine leads: an encoder whose settings leave device and precision open computes with the
    engine's copy, whichever of the two is built first.

    Raises:
        CheckpointError: the checkpoint is broken or is not supported.
        ConfigError: the device is not there.
    """
    settings: ComputeSettings = context.settings or ComputeSettings()
    loaded: list[LoadedModel] = context.share("vlmkit_torch.models", list)
    is_open = not leads and sizing.is_open(settings)
    if is_open and loaded:
        return loaded[0]
    config, device, dtype, cache_bytes = _plan(context)
    for entry in loaded:
        if (entry.device, entry.dtype) == (device, dtype):
            return entry
        if leads and entry.is_open:
            _move(entry.model, device, dtype)
            entry.is_open, entry.cache_bytes = False, cache_bytes
            return entry
    model = load(context.files, config, device, dtype)
    loaded.append(LoadedModel(model, is_open, cache_bytes))
    return loaded[-1]


def examine(context: BuildContext) -> str:
    """Say how precisely and where a model would be computed; reads no weights.

    Raises:
        CheckpointError: transformers cannot read its configuration, or the family is not supported.
        ConfigError: the device is not there.
    """
    config, device, dtype, _ = _plan(context)
    auto_class(context.files, config)
    return f"{str(dtype).removeprefix('torch.')}, {device}"


def examine_follower(context: BuildContext) -> str:
    """Say the same of an encoder, which computes with the engine's copy where it may."""
    own = examine(context)
    settings: ComputeSettings = context.settings or ComputeSettings()
    return f"with the engine's copy, or {own}" if sizing.is_open(settings) else own


def _plan(
    context: BuildContext,
) -> tuple[PretrainedConfig, torch.device, torch.dtype, int | None]:
    """Return a model's configuration, where and how precisely to compute it, and the cache's room.

    Raises:
        CheckpointError: the configuration is wrong, or the model does not fit into memory.
    """
    settings = sizing.settings_of(context)
    config = read_config(context.files)
    device = hardware.choose_device(settings)
    if device.type == "cpu":
        found = sizing.cpu_plan(context)
        return config, device, hardware.DTYPES[found.dtype], found.cache_bytes
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    dtype = hardware.choose_dtype(settings, own if isinstance(own, torch.dtype) else None)
    return config, device, dtype, None


def load(
    checkpoint: Checkpoint, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Read the weights, memory-mapped, and put them on the device.

    A CPU gets them as they are stored, and each is converted for itself: read in another precision
    at once, all of them would be in memory as they are stored, too.

    Raises:
        CheckpointError: weights are absent, of the wrong shape, or need what is not installed.
        EngineError: the device failed, or has not so much memory.
    """
    stored = stored_dtype(checkpoint) if device.type == "cpu" else None
    if stored is None or dtype in (stored, torch.float16):
        model = read_model(checkpoint, config, dtype)
        _move(model, device)
        return model
    model = read_model(checkpoint, config, stored)
    if not _keeps_buffers(model, dtype):
        return read_model(checkpoint, config, dtype)
    files = (checkpoint.path / name for name in weights_of(checkpoint).files)
    _move(model, device, dtype, MappedFiles(files))
    return model


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """Return the precision of all weights as they are stored; None where they have several."""
    if quantization.method_of(checkpoint) is not None:
        return None
    stored = weights_of(checkpoint).num_by_dtype
    names = {
        sizing.STORED.get(name, name) for name in stored if name[:1] in "FB" and name != "BOOL"
    }
    return hardware.DTYPES.get(names.pop()) if len(names) == 1 else None


def _move(
    model: Any,
    device: torch.device,
    dtype: torch.dtype | None = None,
    files: MappedFiles | None = None,
) -> None:
    """Put a model's weights on a device, and in another precision if it is named.

    Args:
        model: whose weights they are.
        device: where to.
        dtype: the other precision.
        files: in which the weights lie; what is converted leaves memory.

    Raises:
        EngineError: the device failed, or has not so much memory.
    """
    try:
        with hardware.alone(device):
            model.to(device=device)
            if dtype is not None:
                _cast(model, dtype, files)
    except Exception as error:
        if failure := faults.told_at_load(error, device):
            raise failure from error
        raise


def _cast(model: Any, dtype: torch.dtype, files: MappedFiles | None = None) -> None:
    """Bring a model to another precision, as it would be had it been read in that.

    Numbers that a model makes of its configuration have a precision of their own: angles of
    rotation stay in float32, and where they are complex, a cast would drop half of each.
    """
    kinds = _buffer_dtypes(model, dtype)
    stay = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    in_float32 = re.compile("|".join(rf"(^|\.){re.escape(name)}($|\.)" for name in stay) or "(?!)")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not in_float32.search(name):
            before, weight.data = weight.data, weight.data.to(dtype)
            if files is not None and before.dtype != dtype:
                files.drop(before)
    for name, buffer in list(model.named_buffers()):
        owner, _, own = name.rpartition(".")
        if buffer.is_floating_point() and not in_float32.search(name):
            setattr(model.get_submodule(owner), own, buffer.to(kinds.get(name, dtype)))


def _keeps_buffers(model: Any, dtype: torch.dtype) -> bool:
    """Whether what a model makes of its configuration is the same in another precision.

    Where it is not, it was rounded when it was made.
    """
    kinds = _buffer_dtypes(model, dtype)
    stored = model.state_dict().keys()
    return all(
        kinds.get(name) == buffer.dtype or name in stored for name, buffer in model.named_buffers()
    )


def _buffer_dtypes(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the precision that each buffer of a model has if it is made in another one."""
    with torch.device("meta"):
        fresh = type(model)._from_config(copy.deepcopy(model.config), dtype=dtype)  # noqa: SLF001 - no public way
    return {name: made.dtype for name, made in fresh.named_buffers()}
