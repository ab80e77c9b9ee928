"""Plans the memory of engine and encoder: the same objects as at load, on the device ``meta``.

The engine is built of a model without numbers, so its cache has the sizes that it has at load. A
step of that engine shows what a step takes. No weight is read.
"""

import copy
import logging
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx.experimental import _config as fx_config

from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.attention.choice import BackendChoice
from vlmkit_torch.devices import hardware
from vlmkit_torch.engine import kernel_memory
from vlmkit_torch.engine.largest_step import admitted, decodes, last_chunks
from vlmkit_torch.engine.packing import is_faster
from vlmkit_torch.engine.torch_engine import TorchEngine
from vlmkit_torch.loading.linear_modules import modules_of
from vlmkit_torch.loading.packed_layers import PlannedPackedLinear
from vlmkit_torch.loading.reading import auto_class
from vlmkit_torch.loading.weights import LoadedModel, ReadingPlan, reading_plan
from vlmkit_torch.model.features import to_tensor
from vlmkit_torch.model.nesting import decoder_of
from vlmkit_torch.model.views import Views
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support import sizing
from vlmkit_torch.support.peak_memory import META, peak_memory
from vlmkit_torch.vision.encoder import CPU, encoder_of

log = logging.getLogger(__name__)

INPUT_FACTOR = 16  # memory of an image tower, relative to its pixels; a guess
MODULES = ("vlmkit_torch.engine.torch_engine", "vlmkit_torch.vision.encoder")


def plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the engine, with the encoder's weights if it shares them.

    Raises:
        CheckpointError: the model is not supported, or does not fit into memory.
        ConfigError: the device is absent, or the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    model, plan, need = _model(context)
    device, cache_bytes = plan.device, plan.cache_bytes
    if cache_bytes is None:
        cache_bytes = max(0, hardware.cache_bytes(device, settings.memory_fraction, need.num_bytes))
    loaded = LoadedModel(model, cache_bytes=cache_bytes)
    choice = BackendChoice(context, settings.attention, settings.has_int8_cache)
    choice.refuse_absent()
    with torch.no_grad(), peak_memory():
        engine = TorchEngine(loaded, Views(model), settings)
        step, state_bytes = _step(engine, load, model.dtype)
    is_packed = settings.packs_weights and is_faster(device, model.dtype)
    kernels = kernel_memory.kernels_of(
        decoder_of(model),
        model.get_output_embeddings(),
        model.dtype,
        num_sequences=load.num_sequences,
        max_step_tokens=min(load.max_step_tokens, engine.limits.capacity_tokens),
        is_packed=is_packed,
    )
    needs = [need, _cache(engine, load, device, "int8, " if settings.has_int8_cache else "")]
    if engine.num_image_rows:
        num_bytes = engine.num_image_rows * engine.needs.image_row_bytes
        needs.append(MemoryNeed(name="image rows for cross-attention", num_bytes=num_bytes))
    if state_bytes:
        detail = f"{state_bytes:,} bytes per sequence"
        needs.append(
            MemoryNeed(
                name="recurrent state",
                num_bytes=state_bytes * load.num_sequences,
                detail=detail,
                sequence_bytes=state_bytes,
            )
        )
    own_bytes = step.num_bytes + (0 if plan.packing is None else plan.packing.expanded_bytes)
    step = replace(step, num_bytes=max(own_bytes, kernels.packing_bytes))
    return MemoryPlan(
        needs=(*needs, step),
        device=str(device),
        precision=str(model.dtype).removeprefix("torch."),
        limits=engine.limits,
        modules=(*MODULES, type(model).__module__),
        warm_up=partial(kernel_memory.call, kernels) if device.type == "cpu" else None,
    )


def plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the encoder; it has weights of its own if it shares none.

    Raises:
        CheckpointError: the model is not supported, or does not fit into memory.
        ConfigError: the device is absent.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    model, plan, weights = _model(context)
    device = plan.device
    name = context.components.get("engine", ("", {}))[0]
    is_shared = name.rpartition("/")[2].rpartition(":")[2] == "torch" and sizing.is_auto(settings)
    needs = [] if is_shared else [weights]
    if load.slots:
        tokens = sum(slot.num_features for slot in load.slots)
        num = min(  # the first request's are encoded while the others arrive
            settings.max_batch_images,
            max(1, load.num_sequences - 1),
            max(1, load.max_encoded_tokens // max(1, tokens)),
        )
        own = [_on_cpu(each) for each in load.slots] if device.type == "cpu" else [*load.slots]
        needs += _tower(context, model, own, num, load.num_sequences)
    return MemoryPlan(
        needs=tuple(needs),
        device=str(device),
        precision=str(model.dtype).removeprefix("torch."),
        modules=(*MODULES, type(model).__module__),
        is_shared=is_shared,
    )


def _model(context: BuildContext) -> tuple[Any, ReadingPlan, MemoryNeed]:
    """Return the model without numbers, how it is read, and the bytes of its weights."""
    plan = reading_plan(context)
    auto = auto_class(context.files, plan.config)
    with META:
        model = auto.from_config(copy.deepcopy(plan.config), dtype=plan.dtype).eval()
    tensors = [*model.parameters(), *model.buffers()]
    num_bytes = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    num = sum(weight.numel() for weight in model.parameters())
    if (packing := plan.packing) is not None:
        for path in modules_of(packing.layers, model, packing.also).values():
            model.get_submodule(path).__class__ = PlannedPackedLinear
    if plan.rounding is None and plan.reader is not None:
        num_bytes = sizing.weight_bytes(context.files, plan.precision, packing)
    elif packing is not None:
        num_bytes -= packing.saved_bytes(plan.dtype.itemsize)
    own = plan.described(context.files)
    detail = ", ".join(filter(None, (plan.precision, f"{num:,} parameters", own)))
    weights = MemoryNeed(name="weights", num_bytes=num_bytes, detail=detail)
    return model, plan, weights


def _cache(
    engine: TorchEngine, load: PlannedLoad, device: torch.device, precision: str
) -> MemoryNeed:
    """Return the memory of keys and values: on a CPU, only written tokens are resident."""
    token_bytes, limits = engine.needs.token_bytes, engine.limits
    context = min(load.context_tokens or limits.max_sequence_tokens, limits.max_sequence_tokens)
    num_tokens = min(context * load.num_sequences, limits.capacity_tokens)
    where = ""
    if device.type != "cpu":
        num_tokens, where = limits.capacity_tokens, ", allocated at once"
    detail = f"{precision}{token_bytes:,} bytes per token, {num_tokens:,} tokens{where}"
    return MemoryNeed(
        name="KV cache",
        num_bytes=num_tokens * token_bytes,
        detail=detail,
        token_bytes=token_bytes,
    )


def _step(engine: TorchEngine, load: PlannedLoad, dtype: torch.dtype) -> tuple[MemoryNeed, int]:
    """Return the memory of the largest step, and the bytes of a sequence's recurrent state."""
    limits = engine.limits
    context = min(load.context_tokens or limits.max_sequence_tokens, limits.max_sequence_tokens)
    num = max(1, min(load.num_sequences, limits.max_sequences, limits.capacity_tokens // context))
    sequences = admitted(engine, context - 1, num)
    chunks = last_chunks(engine, sequences, load.max_step_tokens)
    with peak_memory() as prefill:
        engine.forward(chunks)
    state_bytes = engine.state_bytes(sequences[0])
    peak_bytes = prefill.peak_bytes
    if load.slots and not engine.num_image_rows:  # prompts with images are rows until they are read
        row_bytes = engine.needs.hidden_size * dtype.itemsize
        peak_bytes += min(num, len(chunks) + 1) * context * row_bytes
    if not engine.is_recurrent:
        with peak_memory() as decode:
            engine.forward(decodes(sequences))
        peak_bytes = max(peak_bytes, decode.peak_bytes)
    num_tokens = sum(item.num_tokens for item in chunks)
    detail = f"{num_tokens:,} tokens of prompts, or one of each of {num}"
    step = MemoryNeed(name="largest step", num_bytes=peak_bytes, detail=detail)
    return step, state_bytes


def _tower(
    context: BuildContext,
    model: Any,
    own: list[MediaSlot],
    num: int,
    num_sequences: int,
) -> list[MemoryNeed]:
    """Return the memory of one call of the image tower, and of the features of all sequences.

    Args:
        context: of the encoder.
        model: without numbers.
        own: the images of one request.
        num: requests whose images are encoded together.
        num_sequences: requests at once.
    """
    slots = own * num
    name, detail = "largest image batch", f"{len(slots)} at once"
    try:
        all_nonzero = fx_config.patch(meta_nonzero_assume_all_nonzero=True)  # type: ignore[attr-defined]
        with torch.no_grad(), all_nonzero:
            encoder = encoder_of(LoadedModel(model), context.files, len(slots))
            with peak_memory() as memory:
                found = encoder.encode(slots)
    except Exception as error:  # noqa: BLE001 - a family's code asks for numbers in its own way
        log.info("the image tower is not computed without numbers: %s", type(error).__name__)
        arrays = [array for slot in slots for array in slot.inputs.values()]
        num_bytes = INPUT_FACTOR * sum(prod(array.shape) * model.dtype.itemsize for array in arrays)
        detail += ", estimated by their pixels"
        return [MemoryNeed(name=name, num_bytes=num_bytes, detail=detail)]
    feature_bytes = sum(each.num_bytes for each in found) // num * num_sequences
    return [
        MemoryNeed(name="image features", num_bytes=feature_bytes),
        MemoryNeed(name=name, num_bytes=memory.peak_bytes, detail=detail),
    ]


def _on_cpu(slot: MediaSlot) -> MediaSlot:
    """Return an image whose pixels the tower reads where they are, as on a CPU."""
    tensors = {name: to_tensor(array, CPU) for name, array in slot.inputs.items()}
    pixels = {name: each.to(META) for name, each in tensors.items() if each.is_floating_point()}
    return replace(slot, inputs={**slot.inputs, **pixels})
