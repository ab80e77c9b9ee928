"""Loads a model in a precision onto a device, once for engine and encoder of a pipeline.

Runs no model.
"""

import copy
import logging
import re
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.errors import ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.loading.mapped_files import MappedFiles
from vlmkit_torch.loading.reader_choice import Reader, reader_of
from vlmkit_torch.loading.reading import auto_class, read_config, read_model
from vlmkit_torch.loading.rounded_weights import RoundedLayers, RoundingReader, rounded_layers
from vlmkit_torch.settings import ComputeSettings, EngineSettings
from vlmkit_torch.support import quantization, rounding_request, sizing
from vlmkit_torch.support.packed_forms import CPU, TRITON, Packing

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedModel:
    """A model in memory, ready to compute, without a cache.

    Attributes:
        model: the model.
        is_movable: whether its first user accepts any device and precision.
        cache_bytes: memory for keys and values; None if the device determines it.
        weights: what settings say about the reader of its weights.
        is_read_here: whether its weights were read by code of this plugin.
        rounding: how plain weights were rounded, such as ``int4 in groups of 128``; empty if not.
    """

    model: PreTrainedModel
    is_movable: bool = False
    cache_bytes: int | None = None
    weights: str = "auto"
    is_read_here: bool = True
    rounding: str = ""

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision that it computes in."""
        return self.model.dtype


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How the weights of a model are read, before any is.

    Attributes:
        reader: supplies the weights; None if transformers reads them from the files.
        config: of the model.
        device: that computes.
        dtype: the precision of the model.
        cache_bytes: memory for keys and values; None if the device determines it.
        packing: how layers are packed; None if all are dense.
        rounding: which plain weights are rounded; None if none is.
    """

    reader: Reader | None
    config: PretrainedConfig
    device: torch.device
    dtype: torch.dtype
    cache_bytes: int | None
    packing: Packing | None
    rounding: RoundedLayers | None

    @property
    def precision(self) -> str:
        """The name of the precision."""
        return str(self.dtype).removeprefix("torch.")

    def described(self, checkpoint: Checkpoint) -> str:
        """Return how weights are quantized and what they take in memory; empty if they are not."""
        if self.rounding is not None:
            layers = self.rounding.layers.values()
            num_bytes = sizing.weight_bytes(checkpoint, self.precision, self.packing)
            peak = sizing.loading_bytes(checkpoint, self.precision, self.packing, layers)
            how = "expanded" if self.packing is None else "packed"
            return f"{self.rounding}; {how}: {sizing.sizes(num_bytes, peak)}"
        if self.reader is None or not self.reader.is_own:
            return ""
        return sizing.expansion(checkpoint, self.precision, self.packing)


def reading_plan(context: BuildContext) -> ReadingPlan:
    """Return how the weights of a model are read for some settings.

    Raises:
        CheckpointError: the configuration is wrong, or the model does not fit into memory.
        ConfigError: the device is absent, or settings contradict each other or the checkpoint.
        PluginUnavailable: no reader can read the weights.
    """
    settings, checkpoint = sizing.settings_of(context), context.files
    request = rounding_request.request_of(settings)
    if request is not None:
        rounding_request.refuse_quantized(checkpoint, request)
        sizing.refuse_other_tower(context, request)
    reader = reader_of(context, settings.weights)
    config, device, dtype, cache_bytes = load_plan(context, reader)
    rounding = None
    if request is not None:
        form = TRITON if device.type == "cuda" else CPU
        rounding = rounded_layers(checkpoint, config, request, form)
        rounds = RoundingReader(checkpoint, rounding)
        reader = Reader(rounds, "weights rounded by engine.quantize", is_own=True)
        packing = _packing_of_rounded(rounding, settings, device, dtype)
    else:
        packing = packing_of(context, device, dtype, reader)
    return ReadingPlan(reader, config, device, dtype, cache_bytes, packing, rounding)


def shared_model(context: BuildContext, *, for_engine: bool) -> LoadedModel:
    """Return the pipeline's model for these settings; load it at the first call.

    An encoder with automatic device and precision shares the engine's copy, whichever of the two is
    built first.

    Raises:
        CheckpointError: the checkpoint is broken or is not supported.
        ConfigError: the device is absent, or settings contradict each other or the checkpoint.
    """
    settings: ComputeSettings = context.settings or ComputeSettings()
    loaded: list[LoadedModel] = context.share("vlmkit_torch.models", list)
    is_movable = not for_engine and sizing.is_auto(settings)
    if is_movable and loaded:
        return loaded[0]
    name = sizing.settings_of(context).weights
    plan = reading_plan(context)
    device, dtype = plan.device, plan.dtype
    rounding = "" if plan.rounding is None else plan.rounding.method
    for entry in loaded:
        own = (entry.device, entry.dtype, entry.weights, entry.rounding)
        if own == (device, dtype, name, rounding):
            return entry
        if for_engine and entry.is_movable and entry.rounding == rounding:
            _move(entry.model, device, dtype)
            entry.is_movable, entry.cache_bytes = False, plan.cache_bytes
            return entry
    if plan.rounding is not None:
        log.info("model %r: %s", context.files.name, plan.described(context.files))
    model = load(context.files, plan.config, device, dtype, plan.reader, plan.packing)
    is_read_here = plan.reader is None or plan.reader.is_own
    loaded.append(LoadedModel(model, is_movable, plan.cache_bytes, name, is_read_here, rounding))
    return loaded[-1]


def examine(context: BuildContext) -> str:
    """Return precision, device and the reader of quantized weights of a model; read no weights.

    Raises:
        CheckpointError: transformers cannot read its configuration, or the family is not supported.
        ConfigError: the device is absent, or settings contradict each other or the checkpoint.
        PluginError: no plugin provides the reader, or none can read the weights.
    """
    plan = reading_plan(context)
    auto_class(context.files, plan.config)
    who = "" if plan.reader is None or plan.rounding is not None else plan.reader.who
    found = (plan.precision, str(plan.device), who, plan.described(context.files))
    return ", ".join(filter(None, found))


def examine_encoder(context: BuildContext) -> str:
    """Return the same for an encoder, which shares the engine's copy if its settings allow."""
    own = examine(context)
    settings: ComputeSettings = context.settings or ComputeSettings()
    return f"with the engine's copy, or {own}" if sizing.is_auto(settings) else own


def load_plan(
    context: BuildContext, reader: Reader | None
) -> tuple[PretrainedConfig, torch.device, torch.dtype, int | None]:
    """Return a model's configuration, device, precision and bytes of the cache.

    Raises:
        CheckpointError: the configuration is wrong, or the model does not fit into memory.
    """
    settings = sizing.settings_of(context)
    config = read_config(context.files, reader)
    device = hardware.choose_device(settings)
    if device.type == "cpu":
        found = sizing.cpu_plan(context)
        return config, device, hardware.DTYPES[found.dtype], found.cache_bytes
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    dtype = hardware.choose_dtype(settings, own if isinstance(own, torch.dtype) else None)
    return config, device, dtype, None


def load(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    reader: Reader | None = None,
    packing: Packing | None = None,
) -> PreTrainedModel:
    """Read the weights, memory-mapped, and move them to the device.

    On a CPU, weights are read as stored and then converted one by one. If transformers converted
    them while reading, memory would hold the stored form of all of them, too.

    Raises:
        CheckpointError: weights are absent, have the wrong shape, or need a package that is not
            installed.
        EngineError: the device failed, or has too little memory.
    """
    if packing is None:
        sizing.report_expansion(checkpoint, str(dtype).removeprefix("torch."), device.type)
    is_plain = device.type == "cpu" and reader is None
    stored = stored_dtype(checkpoint) if is_plain else None
    if stored is None or dtype in (stored, torch.float16):
        model = read_model(checkpoint, config, dtype, reader, packing)
        _move(model, device)
        if packing is not None and packing.form is TRITON:
            _check_kernel(model)
        return model
    model = read_model(checkpoint, config, stored)
    if not _keeps_buffers(model, dtype):
        return read_model(checkpoint, config, dtype)
    files = (checkpoint.path / name for name in weights_of(checkpoint).files)
    _move(model, device, dtype, MappedFiles(files))
    return model


def packing_of(
    context: BuildContext, device: torch.device, dtype: torch.dtype, reader: Reader | None
) -> Packing | None:
    """Return how the quantized layers of a model are packed; None if they are dense.

    Raises:
        ConfigError: packed layers are asked for, and the model cannot have any.
    """
    settings = sizing.settings_of(context)
    wanted = settings.quantized_layers if isinstance(settings, EngineSettings) else "dense"
    name, checkpoint = str(dtype).removeprefix("torch."), context.files
    is_own = reader is not None and reader.is_own
    if is_own and device.type == "cpu":
        packing = sizing.packing_on_cpu(checkpoint, settings, name)
        if packing is not None:
            return packing
    if is_own and device.type == "cuda" and wanted == "packed":
        layers = TRITON.layers_of(checkpoint)
        if layers:
            return Packing(TRITON, layers, is_timed=False)
    if wanted == "packed":
        raise ConfigError(
            f'engine.quantized_layers = "packed": model {checkpoint.name!r} has no '
            f"quantized linear layers that stay packed on device {str(device)!r} in {name}",
            hint="it takes integers of at most 8 bits, with a scale for each output or for groups "
            "of 32 or more; on a CPU in bfloat16",
        )
    return None


def _packing_of_rounded(
    rounding: RoundedLayers, settings: ComputeSettings, device: torch.device, dtype: torch.dtype
) -> Packing | None:
    """Return how layers are packed that are rounded when they are read; None if they are expanded.

    Raises:
        ConfigError: no kernel for them runs on the device in this precision, or one must be chosen.
    """
    wanted = settings.quantized_layers if isinstance(settings, EngineSettings) else "dense"
    if wanted == "dense":
        return None
    scheme, also = rounding.request.scheme.name, rounding.request.also
    if device.type == "cpu" and dtype == torch.bfloat16:
        return Packing(CPU, rounding.layers, is_timed=False, also=also)
    if device.type == "cuda" and wanted == "packed":
        return Packing(TRITON, rounding.layers, is_timed=False, also=also)
    where = f"on device {str(device)!r} in {str(dtype).removeprefix('torch.')}"
    if device.type == "cuda":
        raise ConfigError(
            f"engine.quantize = {scheme!r} needs a choice of engine.quantized_layers {where}",
            hint='"packed" computes with a Triton kernel; "dense" expands the rounded weights, '
            "which saves no memory",
        )
    raise ConfigError(
        f"engine.quantize = {scheme!r}: no kernel computes with rounded layers {where}",
        hint='on a CPU, engine.dtype = "bfloat16" has kernels; engine.quantized_layers = "dense" '
        "expands the rounded weights, which saves no memory",
    )


def _check_kernel(model: PreTrainedModel) -> None:
    """Compare the Triton kernel with dense weights on the model's device.

    Raises:
        EngineError: they differ.
    """
    from vlmkit_torch.loading import triton_linear  # imports triton

    log.warning(
        "the Triton kernel of packed weights was developed without a GPU: its values are compared "
        "now, and its speed is unknown"
    )
    with hardware.exclusive(model.device):
        triton_linear.check(model, model.dtype)


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """Return the precision in which all weights are stored; None if there are several."""
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
    """Move a model's weights to a device, and convert them if ``dtype`` is given.

    Args:
        model: whose weights to move.
        device: the target.
        dtype: the new precision.
        files: that the weights are mapped from; converted weights are dropped from memory.

    Raises:
        EngineError: the device failed, or has too little memory.
    """
    try:
        with hardware.exclusive(device):
            model.to(device=device)
            if dtype is not None:
                _cast(model, dtype, files)
    except Exception as error:
        if failure := faults.device_error_at_load(error, device):
            raise failure from error
        raise


def _cast(model: Any, dtype: torch.dtype, files: MappedFiles | None = None) -> None:
    """Convert a model to another precision, with the same result as reading it in that precision.

    Buffers that a model computes from its configuration have their own precision. Rotation angles
    stay in float32, and a cast of complex numbers would drop their imaginary parts.
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
    """Return whether buffers that a model computes are the same in another precision.

    A buffer that differs was rounded when the model computed it.
    """
    kinds = _buffer_dtypes(model, dtype)
    stored = model.state_dict().keys()
    return all(
        kinds.get(name) == buffer.dtype or name in stored for name, buffer in model.named_buffers()
    )


def _buffer_dtypes(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the precision that each buffer has in a model created with ``dtype``."""
    with torch.device("meta"):
        fresh = type(model)._from_config(copy.deepcopy(model.config), dtype=dtype)  # noqa: SLF001 - no public way
    return {name: made.dtype for name, made in fresh.named_buffers()}
