"""Sizes the caches of an engine: what a model stores for a token, and the limits that follow.

Also refuses loaded models that store more than the engine can. Allocates no cache.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.paged import AttentionContext
from vlmkit_torch.attention.step import NewTokens, Step, step_tokens
from vlmkit_torch.cache.kv_cache import LayerShape
from vlmkit_torch.cache.recurrent_states import RecurrentStates, layer_types
from vlmkit_torch.cross_attention.image_cache import CachedImage
from vlmkit_torch.cross_attention.layers import CrossAttentionLayers
from vlmkit_torch.cross_attention.step import probe_step
from vlmkit_torch.devices import hardware
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.loading.packed_linear import has_packed_layers
from vlmkit_torch.loading.weights import LoadedModel
from vlmkit_torch.model import positions
from vlmkit_torch.model.views import Views
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.support.refusal import ATTENTION_TYPES, STATE_TYPES
from vlmkit_torch.support.transformers_source import ANOTHER

MAX_DRAFT_TOKENS = 16  # more are accepted too rarely to pay
MAX_BLOCKS = 2**22  # the records of a block take about 200 bytes
DEFAULT_CONTEXT_TOKENS = 4096  # if a checkpoint states no longest sequence


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """What a model stores, found by a forward pass of one token.

    Attributes:
        layer_shapes: what each layer stores for a token.
        vocab_size: columns of the logits.
        hidden_size: columns of the last layer's hidden states.
        image_row_bytes: what all layers store for a row of an image, for cross-attention.
    """

    layer_shapes: dict[int, LayerShape]
    vocab_size: int
    hidden_size: int
    image_row_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Cache bytes for each token."""
        return sum(shape.token_bytes for shape in self.layer_shapes.values())


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Refuse a model that stores more than this engine can.

    Raises:
        CheckpointError: it has recurrent layers alone, or a recurrent state of an unknown kind.
    """
    names = layer_types(model.config.get_text_config())
    has_attention = not names or not ATTENTION_TYPES.isdisjoint(names)
    is_stateful = model._is_stateful  # noqa: SLF001 - transformers' only word for it
    if not has_attention:
        raise CheckpointError(
            f"model type {model.config.model_type!r} has recurrent layers alone here; decoders "
            "without attention are not supported",
            hint=ANOTHER,
        )
    if is_stateful and STATE_TYPES.isdisjoint(names):
        raise CheckpointError(
            f"model type {model.config.model_type!r} keeps a recurrent state of a kind that is "
            "not supported"
        )


def recurrent_states(views: Views) -> RecurrentStates | None:
    """Return storage for the states of a model's recurrent layers; None if it has none."""
    names = layer_types(views.text_config)
    return None if STATE_TYPES.isdisjoint(names) else RecurrentStates(names)


def layer_kinds(config: Any) -> list[LayerKind]:
    """Return the kind of each layer of a decoder, from its configuration."""
    window = getattr(config, "sliding_window", None)
    section = getattr(config, "attention_chunk_size", None)
    by_name = {
        "full_attention": LayerKind("full_attention"),
        "sliding_attention": LayerKind("sliding_attention", window=window),
        "chunked_attention": LayerKind("chunked_attention", section=section),
    }
    names = layer_types(config)
    if not names:
        names = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    return [by_name.get(name) or LayerKind(name) for name in names]


def probe(
    views: Views,
    context: AttentionContext,
    states: RecurrentStates | None,
    device: torch.device,
    cross_attention: CrossAttentionLayers | None = None,
) -> CacheNeeds:
    """Run one token through the decoder and return what every layer stores.

    Args:
        views: of the model.
        context: of the attention layers.
        states: of recurrent layers.
        device: that computes.
        cross_attention: the cross-attention layers; the token attends to an image of one row.

    Raises:
        CheckpointError: a layer has no attention that can be paged.
    """
    uploads = Uploads(device)
    token = uploads.add(np.zeros((1, 1), dtype=np.int64))
    source = NewTokens(0, np.zeros(1, dtype=np.int64))
    context.step = Step(step_tokens([], [source], 1, 0, uploads), context.backend)
    uploads.send()
    if states is not None:
        states.load([], [])
    image, more = CachedImage(1), {}
    if cross_attention is not None:
        width, dtype = views.text_config.hidden_size, views.model.dtype
        no_image = torch.zeros(1, width, device=device, dtype=dtype)
        cross_attention.step = probe_step(image, no_image)
        more = cross_attention.step.arguments()
    try:
        hidden = views.decoder(
            input_ids=token,
            position_ids=token,
            attention_mask=None,
            past_key_values=None if states is None else states.cache,
            use_cache=False,
            **more,
        ).last_hidden_state
    finally:
        context.step = None
        if cross_attention is not None:
            cross_attention.step = None
    shapes = context.cache.shapes
    names = layer_types(views.text_config)
    num_layers = sum(name in ATTENTION_TYPES for name in names)
    if not names:
        num_layers = views.text_config.num_hidden_layers
    num_cross = 0 if cross_attention is None else len(cross_attention.functions)
    if len(shapes) != num_layers - num_cross or len(image.layers) != num_cross:
        raise CheckpointError(
            f"{num_layers} layers of model type {views.model.config.model_type!r} should have "
            f"attention that can be paged, and {len(shapes) + len(image.layers)} have"
        )
    vocab_size = views.head(hidden[0]).shape[-1]
    return CacheNeeds(shapes, vocab_size, hidden.shape[-1], image.num_bytes)


def max_sequence_tokens(views: Views, settings: EngineSettings) -> int:
    """Return the longest sequence by settings and model; a small cache may hold less.

    The default is the longest sequence that has the rotary frequencies of short ones.
    """
    own: int | None = getattr(views.text_config, "max_position_embeddings", None)
    unchanged = positions.tokens_before_change(views.text_config)
    return settings.max_sequence_tokens or unchanged or own or DEFAULT_CONTEXT_TOKENS


def image_rows(
    settings: EngineSettings, needs: CacheNeeds, available: int, max_image_rows: int
) -> int:
    """Return how many rows of images are stored for cross-attention: half of the cache's memory.

    Args:
        settings: sizes and switches. If they state ``cache_tokens``, images get as much again.
        needs: what the model stores for a row.
        available: bytes of the cache if ``settings`` state no ``cache_tokens``.
        max_image_rows: rows of the largest image, which always fits.
    """
    if settings.cache_tokens is not None:
        num_bytes = settings.cache_tokens * needs.token_bytes
    else:
        num_bytes = available // 2
    return max(num_bytes // needs.image_row_bytes, max_image_rows)


def limits(
    views: Views,
    settings: EngineSettings,
    needs: CacheNeeds,
    available: int,
    *,
    can_rewind: bool,
    num_image_rows: int = 0,
    rounding: str = "",
) -> EngineLimits:
    """Return what an engine with these settings can do.

    Args:
        views: of the model.
        settings: sizes and switches.
        needs: what the model stores for a token.
        available: bytes of the cache if ``settings`` state no ``cache_tokens``.
        can_rewind: whether the state before a token can be restored; a recurrent one cannot.
        num_image_rows: rows of images that are stored in the same memory.
        rounding: how plain weights were rounded when they were read; empty if they were not.

    Raises:
        ConfigError: the cache would not hold one block for each of two sequences, or has too many
            blocks.
    """
    longest = max_sequence_tokens(views, settings)
    if settings.cache_tokens is not None:
        capacity = settings.cache_tokens
    else:
        num_bytes = available - num_image_rows * needs.image_row_bytes
        capacity = min(num_bytes // needs.token_bytes, longest * settings.max_sequences)
    capacity -= capacity % settings.block_tokens
    if capacity < 2 * settings.block_tokens:
        raise ConfigError(
            f"the cache has room for {capacity} tokens, and {2 * settings.block_tokens} are the "
            f"least; a token takes {needs.token_bytes} bytes",
            hint="raise engine.cache_gib or engine.cache_tokens",
        )
    if capacity // settings.block_tokens > MAX_BLOCKS:
        raise ConfigError(
            f"the cache has {capacity // settings.block_tokens} blocks of {settings.block_tokens} "
            f"tokens, and {MAX_BLOCKS} are the most",
            hint="raise engine.block_tokens, or lower engine.cache_tokens",
        )
    packed = "packed layers" if has_packed_layers(views.decoder) else ""
    cache = "int8 cache" if settings.has_int8_cache else ""
    dtype = str(views.model.dtype).removeprefix("torch.")
    return EngineLimits(
        vocab_size=needs.vocab_size,
        max_sequence_tokens=min(longest, capacity),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=settings.max_chunk_tokens,
        mixes_prefill_and_decode=True,
        prefix_block_tokens=settings.block_tokens if can_rewind and settings.prefix_cache else 0,
        is_batch_invariant=False,
        max_item_rows=settings.max_chunk_tokens,
        max_draft_tokens=min(MAX_DRAFT_TOKENS, settings.max_chunk_tokens - 1) if can_rewind else 0,
        overlaps_steps=settings.overlap_steps and can_rewind and views.model.device.type == "cuda",
        hidden_size=needs.hidden_size,
        precision=", ".join(filter(None, (dtype, rounding, packed, cache))),
    )


def available_bytes(settings: EngineSettings, loaded: LoadedModel) -> int:
    """Return how many bytes the cache may take."""
    if settings.cache_gib is not None:
        return int(settings.cache_gib * hardware.GIB)
    if loaded.cache_bytes is not None:
        return loaded.cache_bytes
    return hardware.cache_bytes(loaded.device, settings.memory_fraction)
