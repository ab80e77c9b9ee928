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
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch import faults, hardware
from vlmkit_torch.reading import auto_class, read_config, read_model
from vlmkit_torch.settings import ComputeSettings


@dataclass(slots=True)
class LoadedModel:
    """A model in memory, ready to compute, without a cache.

    Attributes:
        model: the model.
        is_open: whoever loaded it does not mind where and how precisely it computes.
    """

    model: PreTrainedModel
    is_open: bool = False

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
    is_open = not leads and _is_open(settings)
    if is_open and loaded:
        return loaded[0]
    config, device, dtype = _plan(context)
    for entry in loaded:
        if (entry.device, entry.dtype) == (device, dtype):
            return entry
        if leads and entry.is_open:
            _move(entry.model, device, dtype)
            entry.is_open = False
            return entry
    loaded.append(LoadedModel(load(context.files, config, device, dtype), is_open))
    return loaded[-1]


def examine(context: BuildContext) -> str:
    """Say how precisely and where a model would be computed; reads no weights.

    Raises:
        CheckpointError: transformers cannot read its configuration, or the family is not supported.
        ConfigError: the device is not there.
    """
    config, device, dtype = _plan(context)
    auto_class(context.files, config)
    return f"{str(dtype).removeprefix('torch.')}, {device}"


def examine_follower(context: BuildContext) -> str:
    """Say the same of an encoder, which computes with the engine's copy where it may."""
    own = examine(context)
    settings: ComputeSettings = context.settings or ComputeSettings()
    return f"with the engine's copy, or {own}" if _is_open(settings) else own


def _is_open(settings: ComputeSettings) -> bool:
    return settings.device == "auto" and settings.dtype == "auto"


def _plan(context: BuildContext) -> tuple[PretrainedConfig, torch.device, torch.dtype]:
    """Return a model's configuration, and where and how precisely it is to be computed."""
    settings: ComputeSettings = context.settings or ComputeSettings()
    config = read_config(context.files)
    device = hardware.choose_device(settings)
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    dtype = hardware.choose_dtype(settings, device, own if isinstance(own, torch.dtype) else None)
    return config, device, dtype


def load(
    checkpoint: Checkpoint, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Read the weights, memory-mapped, and put them on the device.

    Raises:
        CheckpointError: weights are absent, of the wrong shape, or need what is not installed.
        EngineError: the device failed, or has not so much memory.
    """
    model = read_model(checkpoint, config, dtype)
    _move(model, device)
    return model


def _move(model: Any, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Put a model's weights on a device, and in another precision if it is named.

    Raises:
        EngineError: the device failed, or has not so much memory.
    """
    try:
        with hardware.alone(device):
            model.to(device=device)
            if dtype is not None:
                _cast(model, dtype)
    except Exception as error:
        if failure := faults.told_at_load(error, device):
            raise failure from error
        raise


def _cast(model: Any, dtype: torch.dtype) -> None:
    """Bring a model to another precision, as it would be had it been read in that.

    Numbers that a model makes of its configuration have a precision of their own: angles of
    rotation stay in float32, and where they are complex, a cast would drop half of each.
    """
    with torch.device("meta"):
        fresh = type(model)._from_config(copy.deepcopy(model.config), dtype=dtype)  # noqa: SLF001 - no public way
    kinds = {name: made.dtype for name, made in fresh.named_buffers()}
    stay = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    in_float32 = re.compile("|".join(rf"(^|\.){re.escape(name)}($|\.)" for name in stay) or "(?!)")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not in_float32.search(name):
            weight.data = weight.data.to(dtype)
    for name, buffer in list(model.named_buffers()):
        owner, _, own = name.rpartition(".")
        if buffer.is_floating_point() and not in_float32.search(name):
            setattr(model.get_submodule(owner), own, buffer.to(kinds.get(name, dtype)))
