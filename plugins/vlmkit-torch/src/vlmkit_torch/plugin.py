"""The hooks of vlmkit-torch. Imports nothing heavy: the build functions do."""

import importlib.util
from functools import partial
from typing import Any

from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, KindProviders, Registry
from vlmkit_torch.devices.own_thread import in_own_thread
from vlmkit_torch.interfaces import kinds
from vlmkit_torch.interfaces.torch_attention import AttentionBackend
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support import onednn, quantization, refusal, sizing

VLMKIT_API = (1, 0)
VLMKIT_KINDS = kinds.KINDS


UNVERIFIED = (
    "speed, answers and measured memory on CUDA devices were not verified by the project: "
    "`python benchmarks/gpu_day.py` in a clone of it verifies them"
)


def _engine_cannot_serve(
    checkpoint: Checkpoint, providers: KindProviders | None = None
) -> str | None:
    return refusal.engine_cannot_serve(checkpoint, providers) or sizing.objection(checkpoint)


def _build_engine(context: BuildContext) -> Any:
    sizing.refuse_too_large(context)  # before torch is imported, which takes seconds
    onednn.limit_primitives()
    from vlmkit_torch.engine.torch_engine import build

    return in_own_thread(partial(build, context))


def _build_sdpa(_: BuildContext) -> AttentionBackend:
    from vlmkit_torch.attention.sdpa import SdpaAttention

    return SdpaAttention()


def _build_aligned(_: BuildContext) -> AttentionBackend:
    from vlmkit_torch.attention.sdpa import AlignedAttention

    return AlignedAttention()


def _build_flex(_: BuildContext) -> AttentionBackend:
    from vlmkit_torch.attention.flex import FlexAttention

    return FlexAttention()


def _build_triton(_: BuildContext) -> AttentionBackend:
    from vlmkit_torch.attention.triton_decode import TritonAttention

    return TritonAttention()


def _build_varlen(_: BuildContext) -> AttentionBackend:
    from vlmkit_torch.attention.varlen import VarlenAttention

    return VarlenAttention()


def _triton_why_not() -> str | None:
    return None if importlib.util.find_spec("triton") else "the package triton is not installed"


def _build_quantized_reader(context: BuildContext) -> WeightReader:
    from vlmkit_torch.loading.own_readers import QuantizedReader

    return QuantizedReader(context.files)


def _build_transformers_reader(_: BuildContext) -> WeightReader:
    from vlmkit_torch.loading.own_readers import TransformersReader

    return TransformersReader()


def _build_compressed_reader(context: BuildContext) -> WeightReader:
    from vlmkit_torch.loading.own_readers import CompressedTensorsReader

    return CompressedTensorsReader(context.files)


def _build_encoder(context: BuildContext) -> Any:
    sizing.refuse_too_large(context)
    from vlmkit_torch.vision.encoder import build

    return in_own_thread(partial(build, context))


def _examine_engine(context: BuildContext) -> str:
    from vlmkit_torch.attention.choice import BackendChoice
    from vlmkit_torch.devices import hardware
    from vlmkit_torch.loading.weights import examine

    settings: EngineSettings = context.settings or EngineSettings()
    choice = BackendChoice(context, settings.attention, settings.has_int8_cache)
    choice.refuse_absent()
    cache = "8-bit KV cache" if settings.has_int8_cache else ""
    device = hardware.choose_device(sizing.settings_of(context))
    unverified = UNVERIFIED if device.type == "cuda" else ""
    backends = choice.described(device)
    size = _cache_size(settings) if device.type == "cuda" else ""
    return ", ".join(filter(None, (examine(context), cache, size, backends, unverified)))


def _cache_size(settings: EngineSettings) -> str:
    """Return how large the cache of a CUDA device will be, which is known after the weights."""
    if settings.states_cache:
        return ""
    return (
        f"a cache of what the largest step leaves of {settings.memory_fraction:.0%} of the free "
        "memory, measured at load"
    )


def _examine_encoder(context: BuildContext) -> str:
    from vlmkit_torch.loading.weights import examine_encoder

    return examine_encoder(context)


def _plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_torch.memory_plan import plan_engine

    return plan_engine(context, load)


def _plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    from vlmkit_torch.memory_plan import plan_encoder

    return plan_encoder(context, load)


@hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "torch"``."""
    registry.add(
        "torch",
        _build_engine,
        why_not=refusal.why_not,
        cannot_serve=_engine_cannot_serve,
        settings=EngineSettings,
        priority=10,
        description="any decoder-only family of transformers; paged cache; CUDA, MPS, CPU",
        examine=_examine_engine,
        plan=_plan_engine,
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[Any]) -> None:
    """Offer ``media_encoder.use = "torch"``."""
    registry.add(
        "torch",
        _build_encoder,
        why_not=refusal.why_not,
        cannot_serve=refusal.encoder_cannot_serve,
        settings=EncoderSettings,
        priority=10,
        description="the image tower and projector of any family of transformers",
        examine=_examine_encoder,
        plan=_plan_encoder,
    )


@hookimpl
def vlmkit_register_torch_attentions(registry: Registry[AttentionBackend]) -> None:
    """Offer attention ``"sdpa"``, ``"aligned"``, ``"flex"``, ``"triton"``, ``"varlen"``."""
    registry.add(
        "sdpa",
        _build_sdpa,
        priority=10,
        description="torch's scaled_dot_product_attention, on every device, for every model",
    )
    registry.add(
        "aligned",
        _build_aligned,
        priority=15,
        description="like sdpa, but later chunks need no mask, on CUDA, in plain layers",
    )
    registry.add(
        "triton",
        _build_triton,
        why_not=_triton_why_not,
        priority=20,
        description="decodes by a kernel that reads the cache in place, on CUDA, for every model",
    )
    registry.add(
        "flex",
        _build_flex,
        priority=0,
        description="torch's FlexAttention for prompts, with any mask; only by name",
    )
    registry.add(
        "varlen",
        _build_varlen,
        priority=30,
        description="torch's FlashAttention over the cache in place, on CUDA, in half precision",
    )


@hookimpl
def vlmkit_register_torch_weights(registry: Registry[WeightReader]) -> None:
    """Offer ``engine.weights`` ``"quantized"``, ``"transformers"`` and ``"compressed-tensors"``."""
    registry.add(
        "quantized",
        _build_quantized_reader,
        cannot_serve=quantization.quantized_objection,
        priority=10,
        description="GPTQ, AWQ, bitsandbytes, compressed-tensors, GGUF; no package of theirs",
    )
    registry.add(
        "transformers",
        _build_transformers_reader,
        cannot_serve=quantization.transformers_objection,
        priority=10,
        description="8-bit and 4-bit floats, expanded; other methods by their packages",
    )
    registry.add(
        "compressed-tensors",
        _build_compressed_reader,
        cannot_serve=quantization.compressed_objection,
        priority=10,
        description="compressed-tensors with quantized activations, by its package",
    )
