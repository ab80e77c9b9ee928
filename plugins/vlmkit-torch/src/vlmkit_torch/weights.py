"""Loads a checkpoint through transformers: safetensors only, no remote code, nothing missing.

One loaded model serves engine and encoder of a pipeline. How it is run is not decided here.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.utils import logging as transformers_logging

from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import CheckpointError
from vlmkit.registry import BuildContext
from vlmkit_torch import faults, hardware
from vlmkit_torch.settings import ComputeSettings

logger = logging.getLogger(__name__)


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
            _move(entry.model, device, dtype=dtype)
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
    _auto_class(context.files, config)
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


def read_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Return the checkpoint's configuration as transformers reads it.

    Raises:
        CheckpointError: transformers does not know the family or cannot read the file.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.path, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise CheckpointError(
            f"config.json of model {checkpoint.name!r} is not one that transformers can read"
        ) from error
    return config


def load(
    checkpoint: Checkpoint, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Read the weights, memory-mapped, and put them on the device.

    Raises:
        CheckpointError: weights are absent, of the wrong shape, or need what is not installed.
        EngineError: the device failed, or has not so much memory.
    """
    auto = _auto_class(checkpoint, config)
    try:
        with _without_bar():
            model, report = auto.from_pretrained(
                checkpoint.path,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:
        if failure := faults.told_at_load(error, torch.device("cpu")):
            raise failure from error
        method = (checkpoint.config.get("quantization_config") or {}).get("quant_method")
        hint = f"it is quantized with {method!r}, which needs packages of its own" if method else ""
        raise CheckpointError(
            f"the weights of model {checkpoint.name!r} could not be loaded", hint=hint
        ) from error
    _refuse_gaps(checkpoint, report)
    model.eval().requires_grad_(requires_grad=False)
    _move(model, device)
    return model  # type: ignore[no-any-return]


def _move(model: Any, device: torch.device, **precision: torch.dtype) -> None:
    """Put a model's weights on a device, and in another precision if it is named.

    Raises:
        EngineError: the device failed, or has not so much memory.
    """
    try:
        with hardware.alone(device):
            model.to(device=device, **precision)
    except Exception as error:
        if failure := faults.told_at_load(error, device):
            raise failure from error
        raise


@contextmanager
def _without_bar() -> Iterator[None]:
    """Keep transformers' progress bar off the terminal: who loads shows the stages."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _auto_class(checkpoint: Checkpoint, config: PretrainedConfig) -> Any:
    if config.is_encoder_decoder:
        raise CheckpointError(f"model {checkpoint.name!r} is an encoder-decoder, not supported")
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    raise CheckpointError(
        f"model {checkpoint.name!r} of type {config.model_type!r} generates no text that "
        "transformers knows of"
    )


def _refuse_gaps(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    """Weights that were not in the files would be random: an answer of such a model is noise."""
    for kind, what in (("missing_keys", "lacks"), ("mismatched_keys", "has the wrong shape for")):
        if names := sorted(str(key) for key in report.get(kind) or ()):
            raise CheckpointError(
                f"model {checkpoint.name!r} {what} {len(names)} weights, such as {names[0]!r}"
            )
    if unused := report.get("unexpected_keys"):
        logger.warning("model %r has %d weights that are not used", checkpoint.name, len(unused))
