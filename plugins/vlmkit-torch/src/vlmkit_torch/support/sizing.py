"""Chooses a model's precision on a CPU, and refuses a model that does not fit into memory.

Uses ``config.json``, the headers of the weight files and the system, before torch is imported and
before a weight is read. Does not consider memory of other devices.
"""

import logging
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit import memory, processor, weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.settings import ComputeSettings, EngineSettings
from vlmkit_torch.support import packed_forms, quantization, rounding_request
from vlmkit_torch.support.packed_forms import CPU, Packing
from vlmkit_torch.support.rounding_request import RoundingRequest

if TYPE_CHECKING:
    from vlmkit_quantized.formats import IntegerLayer

log = logging.getLogger(__name__)

GIB = 2**30
MIB = 2**20
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
HALF = ("bfloat16", "float16")
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # names of safetensors
BFLOAT16_UNITS = frozenset({"avx512_bf16", "amx_bf16"})  # CPU features for products of bfloat16
MUCH_BYTES = GIB  # more in memory than in files
CACHE_BYTES = 4 * GIB  # if settings do not state it
MIN_CACHE_BYTES = GIB // 8
ACCELERATORS = tuple(map(Path, ("/dev/nvidia0", "/proc/driver/nvidia", "/dev/kfd")))
EXPANDING_BYTES = 8  # of a number while its weight is expanded: codes, float32 and a copy
ROUNDING_BYTES = 7  # of a number while its weight is rounded: float32, codes and a copy to pack
WORKING_BYTES = GIB // 2  # libraries, and activations of a step


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The precision and cache size of a model on a CPU.

    Attributes:
        dtype: name of the precision.
        cache_bytes: memory for keys and values if settings do not state it.
    """

    dtype: str
    cache_bytes: int


def cpu_plan(context: BuildContext) -> CpuPlan:
    """Return the plan of a pipeline's model, computed once, because loading reduces free memory.

    Raises:
        CheckpointError: the model does not fit.
    """
    settings = settings_of(context)
    key = ("vlmkit_torch.cpu_plan", settings)
    return context.share(key, lambda: plan(context.files, settings))


def settings_of(context: BuildContext) -> ComputeSettings:
    """Return the settings with which a component's model is loaded.

    An encoder with automatic device and precision uses the engine's settings and its copy.
    """
    settings: ComputeSettings = context.settings or ComputeSettings()
    name, stated = context.components.get("engine", ("", {}))
    is_engine = isinstance(settings, EngineSettings)
    if is_engine or name.rpartition("/")[2] != "torch" or not is_auto(settings):
        return settings
    return msgspec.convert(dict(stated), EngineSettings)


def refuse_other_tower(context: BuildContext, request: RoundingRequest) -> None:
    """Refuse to round a tower that is not the one that computes.

    Raises:
        ConfigError: pictures are encoded by a copy of the encoder's own, or not at all.
    """
    encoder = context.components.get("media_encoder")
    if encoder is None or "tower" not in request.also:
        return
    name, stated = encoder
    own = [field for field in ("device", "dtype", "weights") if stated.get(field, "auto") != "auto"]
    if name.rpartition("/")[2] == "torch" and not own:
        return
    why = f"sets media_encoder.{own[0]}" if own else f"has media_encoder.use = {name!r}"
    raise ConfigError(
        "engine.quantize_also has 'tower', which rounds the tower of the engine's copy, and the "
        f"config {why}, so that copy encodes no pictures",
        hint=f"leave 'tower' or media_encoder.{own[0] if own else 'use'} out",
    )


def is_auto(settings: ComputeSettings) -> bool:
    """Return whether device, precision and reader of weights are ``auto``."""
    return settings.device == settings.dtype == settings.weights == "auto"


def refuse_too_large(context: BuildContext) -> None:
    """Refuse a model that does not fit, if it is certain that a CPU computes it.

    Otherwise the same check follows after torch has found the devices.

    Raises:
        CheckpointError: the model does not fit.
    """
    device = settings_of(context).device
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        cpu_plan(context)


def may_have_gpu() -> bool:
    """Return whether this machine may have another device than its CPU."""
    return sys.platform == "darwin" or any(path.exists() for path in ACCELERATORS)


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return an objection if a model exceeds this machine's memory with any settings."""
    available = _available_bytes(checkpoint)
    if available is None or may_have_gpu():
        return None
    need = max(
        weight_bytes(checkpoint, "bfloat16") + WORKING_BYTES + MIN_CACHE_BYTES,
        loading_bytes(checkpoint, "bfloat16"),
    )
    if need <= available:
        return None
    return Objection(
        "it does not fit into memory: weights, cache and working memory take "
        f"{need / GIB:.1f} GiB in bfloat16, and {available / GIB:.1f} GiB are available",
        hint="take a smaller model",
    )


def plan(checkpoint: Checkpoint, settings: ComputeSettings) -> CpuPlan:
    """Return the fastest allowed precision that fits into memory.

    Args:
        checkpoint: whose weights are to be read.
        settings: of the engine, or of an encoder with its own copy of the weights.

    Raises:
        CheckpointError: none fits.
        ConfigError: weights are to be rounded that are quantized already.
    """
    request = rounding_request.request_of(settings)
    if request is not None:
        rounding_request.refuse_quantized(checkpoint, request)
    names: tuple[str, ...] = (settings.dtype,)
    if settings.dtype == "auto":
        names = (
            (packed_forms.DTYPE,)
            if prefers_packed(checkpoint, settings)
            else candidates(checkpoint)
        )
    available = _available_bytes(checkpoint)
    if available is None:
        return CpuPlan(names[0], CACHE_BYTES)
    stated = _stated_cache_bytes(settings)
    needs: dict[str, int] = {}
    for name in names:
        packing = packing_on_cpu(checkpoint, settings, name)
        rounded = () if request is None or packing is None else packing.layers.values()
        own = weight_bytes(checkpoint, name, packing) + WORKING_BYTES
        loading = loading_bytes(checkpoint, name, packing, rounded)
        needs[name] = max(own + (stated or MIN_CACHE_BYTES), loading)
        if needs[name] <= available:
            log.info("model %r computes in %s on the CPU", checkpoint.name, name)
            return CpuPlan(name, min(CACHE_BYTES, available - own))
    raise _too_large(checkpoint, needs, available, has_stated_cache=stated is not None)


def candidates(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the precisions that represent a checkpoint's own exactly, the fastest first.

    A weight of half the bytes is read in half the time. Without bfloat16 units, its products take
    longer than that saves; few CPUs have float16 units.

    Quantized weights are exact in float32 alone. The stated precision follows, for less memory.
    """
    own = _own_dtype(checkpoint)
    if quantization.is_read_here(checkpoint):
        stated = _stated_dtype(checkpoint)
        return ("float32", stated) if stated in HALF else ("float32",)
    if own == "bfloat16" and multiplies_bfloat16():
        return (own,)  # float32 is slower and larger
    return ("float32",) if own == "float32" else ("float32", own)


def packing_on_cpu(checkpoint: Checkpoint, settings: ComputeSettings, dtype: str) -> Packing | None:
    """Return how layers of a model are packed on a CPU, by headers; None if they are dense.

    Layers of a plain checkpoint that are rounded when they are read are packed without a timing,
    because less memory is what rounding is for.
    """
    if (request := rounding_request.request_of(settings)) is None:
        return packed_forms.packing_on_cpu(checkpoint, settings, dtype)
    if dtype != packed_forms.DTYPE or not is_packed_if_rounded(settings):
        return None
    layers = rounding_request.layers_by_headers(checkpoint, request)
    return Packing(CPU, layers, is_timed=False, also=request.also)


def is_packed_if_rounded(settings: ComputeSettings) -> bool:
    """Return whether layers that are rounded when they are read stay packed on a CPU."""
    return isinstance(settings, EngineSettings) and settings.quantized_layers != "dense"


def prefers_packed(checkpoint: Checkpoint, settings: ComputeSettings) -> bool:
    """Return whether the precision in which layers stay packed is that of a checkpoint.

    It is if the user asks for packed layers, or if the checkpoint states bfloat16 and this CPU
    multiplies it. One in float16 would lose bits.
    """
    if packing_on_cpu(checkpoint, settings, packed_forms.DTYPE) is None:
        return False
    is_named = isinstance(settings, EngineSettings) and (
        settings.quantized_layers == "packed" or settings.quantize is not None
    )
    return is_named or (_stated_dtype(checkpoint) == packed_forms.DTYPE and multiplies_bfloat16())


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has bfloat16 units."""
    return not BFLOAT16_UNITS.isdisjoint(processor.features())


def weight_bytes(checkpoint: Checkpoint, dtype: str, packing: Packing | None = None) -> int:
    """Return the bytes of a checkpoint's weights in memory.

    A lower bound where a package runs layers with quantized weights.

    Args:
        checkpoint: the files.
        dtype: the precision of the model.
        packing: of layers that stay packed; None if all are dense.
    """
    saved = 0 if packing is None else packing.saved_bytes(ITEM_BYTES[dtype])
    if (summary := quantization.summary_of(checkpoint)) is not None:
        return summary.num_weights * ITEM_BYTES[dtype] - saved
    stored = weights_of(checkpoint)
    if quantization.method_of(checkpoint) is not None:
        return stored.num_bytes
    return stored.num_parameters * ITEM_BYTES[dtype] - saved


def loading_bytes(
    checkpoint: Checkpoint,
    dtype: str,
    packing: Packing | None = None,
    rounded: "Collection[IntegerLayer]" = (),
) -> int:
    """Return the most bytes that weights take while they are read.

    The largest weight is expanded or rounded when all others are in memory already, at worst.
    Weights of experts that transformers merges are there as parts and as a whole.

    Args:
        checkpoint: the files.
        dtype: the precision of the model.
        packing: of layers that stay packed; None if all are dense.
        rounded: the layers of a plain checkpoint that are rounded.
    """
    whole = weight_bytes(checkpoint, dtype, packing)
    if rounded:
        return whole + max(layer.rows * layer.columns for layer in rounded) * ROUNDING_BYTES
    if (summary := quantization.summary_of(checkpoint)) is None:
        return whole
    return whole + summary.largest * EXPANDING_BYTES + summary.largest_merged * ITEM_BYTES[dtype]


def expansion(checkpoint: Checkpoint, dtype: str, packing: Packing | None = None) -> str:
    """Return how weights are quantized and what they take in memory; empty if they are not."""
    if (summary := quantization.summary_of(checkpoint)) is None:
        return ""
    how = f"expanded to {dtype}"
    if packing is not None:
        how = f"{len(packing.layers)} layers packed, others in {dtype}"
    whole = weight_bytes(checkpoint, dtype, packing)
    return f"{summary}; {how}: {sizes(whole, loading_bytes(checkpoint, dtype, packing))}"


def sizes(num_bytes: int, peak_bytes: int) -> str:
    """Return the memory of weights in words."""
    return f"{size_text(num_bytes)}, at most {size_text(peak_bytes)} while they are read"


def size_text(num_bytes: int) -> str:
    """Return a number of bytes in words."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.1f} MiB"


def file_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the files of weights."""
    own = weight_files.files_of_one(checkpoint)
    return sum(file.stat().st_size for file in own) or weights_of(checkpoint).num_bytes


def report_expansion(checkpoint: Checkpoint, dtype: str, device: str) -> None:
    """Log how much memory quantized weights take when they are expanded; warn if it is much more.

    Args:
        checkpoint: the files.
        dtype: the precision of the model.
        device: the type of its device.
    """
    if not quantization.is_read_here(checkpoint):
        return
    in_files, in_memory = file_bytes(checkpoint), weight_bytes(checkpoint, dtype)
    can_pack = device == "cpu" and bool(CPU.layers_of(checkpoint))
    log.log(
        logging.WARNING if in_memory >= in_files + MUCH_BYTES else logging.INFO,
        "quantized weights of model %r are expanded to %s: %.1f GiB in memory, %.1f GiB in files%s",
        *(checkpoint.name, dtype, in_memory / GIB, in_files / GIB),
        '; engine.quantized_layers = "packed" keeps integers, in bfloat16' if can_pack else "",
    )


def _available_bytes(checkpoint: Checkpoint) -> int | None:
    """Return this machine's available memory; None if it is unknown or does not matter."""
    return None if checkpoint.is_for_another_machine else memory.available_bytes()


def _own_dtype(checkpoint: Checkpoint) -> str:
    """Return the precision that a checkpoint states and has; float32 if the two differ."""
    if quantization.method_of(checkpoint) is not None:
        return "float32"
    stated = _stated_dtype(checkpoint)
    stored = next(iter(weights_of(checkpoint).num_by_dtype), "")  # of most numbers
    return stated if stated is not None and stated == STORED.get(stored) else "float32"


def _stated_dtype(checkpoint: Checkpoint) -> Any:
    """Return the precision that a checkpoint states; None if it states none."""
    config, text = checkpoint.answering, checkpoint.answering.get("text_config")
    parts = [config, text] if isinstance(text, Mapping) else [config]
    names: list[Any] = [part.get(key) for part in parts for key in ("dtype", "torch_dtype")]
    return next((name for name in names if name), None)


def _stated_cache_bytes(settings: ComputeSettings) -> int | None:
    """Return the bytes of the cache if settings state them; else None."""
    gib = settings.cache_gib if isinstance(settings, EngineSettings) else None
    return None if gib is None else int(gib * GIB)


def _too_large(
    checkpoint: Checkpoint, needs: Mapping[str, int], available: int, *, has_stated_cache: bool
) -> CheckpointError:
    takes = " and ".join(f"{size / GIB:.1f} GiB in {name}" for name, size in needs.items())
    smaller = "lower engine.cache_gib, or take" if has_stated_cache else "take"
    if "bfloat16" not in needs and "float16" not in needs:
        smaller = f'engine.dtype = "bfloat16" takes half as much; or {smaller}'
    return CheckpointError(
        f"model {checkpoint.name!r} does not fit into memory: weights, cache and working memory "
        f"take {takes}, and {available / GIB:.1f} GiB are available",
        hint=f"{smaller} a smaller model",
    )
