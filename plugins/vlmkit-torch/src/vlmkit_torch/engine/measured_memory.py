"""Measures on a device what the largest step and image batch take, and what the cache may have.

The step runs on an engine of its own with a small cache, which is closed afterwards. So nothing of
it stays in the cache, the graphs or the counters of the engine that serves.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from vlmkit.errors import ConfigError, ImageError, OutOfMemory, RequestError
from vlmkit.interfaces.memory_plan import PlannedLoad
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.plugins.registry import BuildContext
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.devices.uploads import BUFFER_NUMBERS
from vlmkit_torch.engine.largest_step import SizedEngine, admitted, decodes, last_chunks
from vlmkit_torch.engine.static_steps import MAX_SHAPES, MIN_TABLE_TOKENS
from vlmkit_torch.loading.weights import LoadedModel
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support import sizing
from vlmkit_torch.support.sizing import size_text
from vlmkit_torch.vision.encoder import encoder_of

log = logging.getLogger(__name__)

SMALL_CACHE = 1 / 4  # of the planned cache; it limits the context of the step that is measured
MAX_PIXELS = 2**24  # of an image to encode; most processors shrink it


@dataclass(frozen=True, slots=True)
class MeasuredNeeds:
    """What a device was seen to need beside weights and cache.

    Attributes:
        step_bytes: the largest step, whose tokens all have logits.
        graph_bytes: the tensors of decode steps that CUDA graphs keep.
        image_bytes: the largest image batch, which is encoded beside a step, and the features of
            images that are kept.
        state_bytes: the recurrent states of all sequences.
    """

    step_bytes: int
    graph_bytes: int
    image_bytes: int
    state_bytes: int

    @property
    def num_bytes(self) -> int:
        """All of them together."""
        return self.step_bytes + self.graph_bytes + self.image_bytes + self.state_bytes

    def __str__(self) -> str:
        """Return the figures for logs and errors."""
        needs = {
            "the largest step takes": self.step_bytes,
            "CUDA graphs": self.graph_bytes,
            "the largest image batch and kept features": self.image_bytes,
            "recurrent states": self.state_bytes,
        }
        return ", ".join(f"{name} {size_text(size)}" for name, size in needs.items() if size)


class MeasuredEngine(SizedEngine, Protocol):
    """An engine that reports whether a step ran out of memory and was split."""

    @property
    def max_pass_tokens(self) -> int | None:
        """Most tokens of a forward pass since memory ran out; None before."""
        ...


def applies(settings: EngineSettings, device: torch.device) -> bool:
    """Return whether the memory of an engine is measured."""
    return device.type == "cuda" and not settings.states_cache


def settings_to_measure(settings: EngineSettings, device: torch.device) -> EngineSettings:
    """Return the settings of the engine that is measured: with a small cache, without graphs."""
    planned = hardware.cache_bytes(device, settings.memory_fraction)
    return msgspec.structs.replace(
        settings,
        cache_gib=max(1, planned * SMALL_CACHE) / sizing.GIB,
        cuda_graphs=False,
        compile=False,
    )


def measure(
    engine: MeasuredEngine, context: BuildContext, loaded: LoadedModel, settings: EngineSettings
) -> MeasuredNeeds:
    """Run the largest step and the largest image batch, and return what they take.

    Args:
        engine: with a small cache; its sequences are released.
        context: of the engine, with the model's tokenizer and the settings of the others.
        loaded: the model.
        settings: of the engine that will serve.

    Raises:
        OutOfMemory: one of them does not fit.
    """
    device, load = loaded.device, _load(context, settings)
    image_bytes = _image_bytes(engine, context, loaded, load)
    longest = min(engine.limits.max_sequence_tokens, engine.limits.capacity_tokens)
    sequences = admitted(engine, longest - 1, 1)
    chunks = last_chunks(engine, sequences, load.max_step_tokens, has_all_rows=True)
    step_bytes = hardware.added_bytes(device, lambda: engine.forward(chunks))
    state_bytes = engine.state_bytes(sequences[0]) * load.num_sequences
    decode_bytes = 0
    engine.release(sequences[0])
    if not engine.is_recurrent:
        decode_bytes = _decode_bytes(engine, device, load.num_sequences)
    if engine.max_pass_tokens is not None:
        raise OutOfMemory(f"a step of {load.max_step_tokens} tokens on {str(device)!r}")
    graph_bytes = 0
    if settings.cuda_graphs and not engine.is_recurrent:
        graph_bytes = decode_bytes + MAX_SHAPES * BUFFER_NUMBERS * torch.int64.itemsize
    step_bytes = max(step_bytes, decode_bytes)
    return MeasuredNeeds(step_bytes, graph_bytes, image_bytes, state_bytes)


def cache_bytes(
    needs: MeasuredNeeds, memory_fraction: float, token_bytes: int, device: torch.device
) -> int:
    """Return what the cache may take; the device holds the weights, and no cache.

    Args:
        needs: beside the cache.
        memory_fraction: of the free memory, for needs and cache.
        token_bytes: what the cache stores for a token.
        device: see above.

    Raises:
        ConfigError: the cache would not hold the smallest decode step.
    """
    faults.free_memory(device)
    free_bytes, least = hardware.free_bytes(device), MIN_TABLE_TOKENS * token_bytes
    left = int(free_bytes * memory_fraction) - needs.num_bytes
    found = f"{size_text(free_bytes)} of {str(device)!r} are free beside the weights; {needs}"
    if left >= least:
        log.info(
            "measured memory: %s; the cache gets %s; the project verified no such measurement on a "
            "GPU, `python benchmarks/gpu_day.py` does",
            *(found, size_text(left)),
        )
        return left
    raise ConfigError(
        f"too little memory is left for a cache: {found}; engine.memory_fraction = "
        f"{memory_fraction:g} leaves {size_text(max(0, left))}, and the smallest cache, of "
        f"{MIN_TABLE_TOKENS} tokens, takes {size_text(least)}",
        hint="lower scheduler.max_step_tokens, engine.max_sequences or "
        "media_encoder.max_batch_images, raise engine.memory_fraction, or free memory of the "
        "device; engine.cache_gib states the cache without a measurement",
    )


def _decode_bytes(engine: MeasuredEngine, device: torch.device, num_sequences: int) -> int:
    """Return the memory of a step that decodes all sequences, in equal parts of the cache."""
    num = min(num_sequences, engine.limits.max_sequences)
    context = min(engine.limits.capacity_tokens // num, engine.limits.max_sequence_tokens)
    sequences = admitted(engine, max(1, context - 1), num)
    ready = [each for each in sequences if engine.reserve(each, each.num_prompt_tokens + 1)]
    num_bytes = hardware.added_bytes(device, lambda: engine.forward(decodes(ready)))
    for sequence in sequences:
        engine.release(sequence)
    return num_bytes


def _load(context: BuildContext, settings: EngineSettings) -> PlannedLoad:
    """Return the largest load that the scheduler gives to engine and encoder."""
    stated: Mapping[str, Any] = context.components.get("scheduler", ("", {}))[1]
    usual, most = PlannedLoad(), settings.max_sequences
    return PlannedLoad(
        num_sequences=min(most, stated.get("max_running", most)),
        max_step_tokens=stated.get("max_step_tokens", usual.max_step_tokens),
        max_encoded_tokens=stated.get("encoder_budget_tokens", usual.max_encoded_tokens),
    )


def _image_bytes(
    engine: MeasuredEngine, context: BuildContext, loaded: LoadedModel, load: PlannedLoad
) -> int:
    """Return the memory of images; 0 if another copy of the model encodes them."""
    name, stated = context.components.get("media_encoder", ("", {}))
    own = msgspec.convert(dict(stated), EncoderSettings) if _is_own(name) else None
    if own is None or context.text_side is None or not sizing.is_auto(own):
        return 0
    most = min(engine.limits.max_sequence_tokens, engine.limits.capacity_tokens)
    slots = _largest_image(context.text_side, context.bounds.images.max_pixels, most)
    if not slots:
        return 0
    num = max(1, load.max_encoded_tokens // sum(slot.num_features for slot in slots))
    batch = [*slots] * min(num, own.max_batch_images)
    encoder = encoder_of(loaded, context.files, own.max_batch_images)
    try:
        num_bytes = hardware.added_bytes(loaded.device, lambda: encoder.encode(batch))
    except ImageError as error:
        log.info("no image batch is measured: %s", error)
        return 0
    return num_bytes + context.bounds.feature_cache_bytes


def _is_own(name: str) -> bool:
    return name.rpartition("/")[2].rpartition(":")[2] == "torch"


def _largest_image(tokenizer: Tokenizer, max_pixels: int, max_tokens: int) -> tuple[MediaSlot, ...]:
    """Return the largest square image that a prompt has room for; nothing without such."""
    side = isqrt(min(max_pixels, MAX_PIXELS))
    while side:
        image = Image.open(np.zeros((side, side, 3), np.uint8))
        try:
            slots = tokenizer.prompt([Message.of("user", "?", [ImagePart(image)])]).media
        except RequestError as error:
            log.info("no image batch is measured: %s", error)
            return ()
        if slots and sum(slot.num_features for slot in slots) <= max_tokens:
            return slots
        side //= 2
    return ()
