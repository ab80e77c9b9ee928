"""What a loaded model needs of a cache, what it is refused for, and what limits follow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit_torch.attention.grouping import Costs
from vlmkit_torch.attention.key_ranges import Source
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.paged import Board
from vlmkit_torch.attention.step import Step
from vlmkit_torch.cache.kv_cache import LayerShape
from vlmkit_torch.cache.recurrent_states import RecurrentStates, layer_types
from vlmkit_torch.cross_attention.image_cache import Picture
from vlmkit_torch.cross_attention.layers import Onlookers
from vlmkit_torch.cross_attention.step import trial
from vlmkit_torch.devices import hardware
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.loading.weights import LoadedModel
from vlmkit_torch.model import positions
from vlmkit_torch.model.views import Views
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.support.refusal import ATTENTION_TYPES, STATE_TYPES
from vlmkit_torch.support.transformers_source import ANOTHER

MAX_DRAFT_TOKENS = 16  # more are never right often enough to pay
MAX_BLOCKS = 2**22  # what is noted of each takes about 200 bytes
DEFAULT_CONTEXT_TOKENS = 4096  # where a checkpoint does not say how long it may read


@dataclass(frozen=True, slots=True)
class Needs:
    """What a probe forward showed.

    Attributes:
        layer_shapes: what each layer keeps for a token.
        vocab_size: columns of the logits.
        hidden_size: columns of the last layer's hidden states.
        picture_row_bytes: what all layers keep for a row of a picture that they look at.
    """

    layer_shapes: dict[int, LayerShape]
    vocab_size: int
    hidden_size: int
    picture_row_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Cache bytes for each token."""
        return sum(shape.token_bytes for shape in self.layer_shapes.values())


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raise CheckpointError for a model that keeps what this engine cannot keep."""
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
    """Return a store for the states of a model's recurrent layers; None if it has none."""
    names = layer_types(views.text_config)
    return None if STATE_TYPES.isdisjoint(names) else RecurrentStates(names)


def layer_kinds(config: Any) -> list[LayerKind]:
    """Return which tokens each layer looks at, from the configuration of a decoder."""
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
    board: Board,
    states: RecurrentStates | None,
    device: torch.device,
    onlookers: Onlookers | None = None,
) -> Needs:
    """Run one token and see what every layer writes.

    Args:
        views: of the model.
        board: of the engine's layers.
        states: of recurrent ones.
        device: that computes.
        onlookers: the layers that look at pictures; the token looks at one of a single row.

    Raises:
        CheckpointError: a layer has no attention that can be paged.
    """
    uploads = Uploads(device)
    token = uploads.add(np.zeros((1, 1), dtype=np.int64))
    source = Source(0, np.zeros(1, dtype=np.int64))
    board.step = Step([], [source], Costs(1, 1, may_split=False), 0, uploads)
    uploads.send()
    if states is not None:
        states.load([], [])
    picture, more = Picture(1), {}
    if onlookers is not None:
        width, dtype = views.text_config.hidden_size, views.model.dtype
        onlookers.step = trial(picture, torch.zeros(1, width, device=device, dtype=dtype))
        more = onlookers.step.arguments()
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
        board.step = None
        if onlookers is not None:
            onlookers.step = None
    shapes = board.cache.shapes
    names = layer_types(views.text_config)
    num_layers = sum(name in ATTENTION_TYPES for name in names)
    if not names:
        num_layers = views.text_config.num_hidden_layers
    num_looking = 0 if onlookers is None else len(onlookers.looks)
    if len(shapes) != num_layers - num_looking or len(picture.layers) != num_looking:
        raise CheckpointError(
            f"{num_layers} layers of model type {views.model.config.model_type!r} should have "
            f"attention that can be paged, and {len(shapes) + len(picture.layers)} have"
        )
    vocab_size = views.head(hidden[0]).shape[-1]
    return Needs(shapes, vocab_size, hidden.shape[-1], picture.num_bytes)


def max_sequence_tokens(views: Views, settings: EngineSettings) -> int:
    """Return the longest sequence that is asked for; a small cache may hold less.

    Not asked, it is as long as a model reads with the frequencies that it has for short sequences.
    """
    own: int | None = getattr(views.text_config, "max_position_embeddings", None)
    unchanged = positions.tokens_before_change(views.text_config)
    return settings.max_sequence_tokens or unchanged or own or DEFAULT_CONTEXT_TOKENS


def picture_rows(settings: EngineSettings, needs: Needs, room_bytes: int, most_rows: int) -> int:
    """Return how many rows of pictures are kept that layers look at: in half of the cache's memory.

    Args:
        settings: sizes and switches. ``cache_tokens`` counts tokens; pictures get as much again.
        needs: what the model keeps for a row.
        room_bytes: memory of the cache where ``settings`` do not count tokens.
        most_rows: of the largest picture, for which there is always room.
    """
    if settings.cache_tokens is not None:
        room = settings.cache_tokens * needs.token_bytes
    else:
        room = room_bytes // 2
    return max(room // needs.picture_row_bytes, most_rows)


def limits(
    views: Views,
    settings: EngineSettings,
    needs: Needs,
    room_bytes: int,
    *,
    goes_back: bool,
    num_picture_rows: int = 0,
) -> EngineLimits:
    """Return what an engine with these settings can do.

    Args:
        views: of the model.
        settings: sizes and switches.
        needs: what the model keeps for a token.
        room_bytes: memory of the cache where ``settings`` do not count tokens.
        goes_back: whether the state before a token can be had again: a recurrent one cannot.
        num_picture_rows: that are kept besides, in the same memory.

    Raises:
        ConfigError: the cache would not hold one block for each of two sequences, or has too many
            blocks.
    """
    longest = max_sequence_tokens(views, settings)
    if settings.cache_tokens is not None:
        capacity = settings.cache_tokens
    else:
        room = room_bytes - num_picture_rows * needs.picture_row_bytes
        capacity = min(room // needs.token_bytes, longest * settings.max_sequences)
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
    return EngineLimits(
        vocab_size=needs.vocab_size,
        max_sequence_tokens=min(longest, capacity),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=settings.max_chunk_tokens,
        mixes_prefill_and_decode=True,
        prefix_block_tokens=settings.block_tokens if goes_back and settings.prefix_cache else 0,
        is_batch_invariant=False,
        max_item_rows=settings.max_chunk_tokens,
        max_draft_tokens=min(MAX_DRAFT_TOKENS, settings.max_chunk_tokens - 1) if goes_back else 0,
        hidden_size=needs.hidden_size,
        precision=str(views.model.dtype).removeprefix("torch."),
    )


def room_bytes(settings: EngineSettings, loaded: LoadedModel) -> int:
    """Return how many bytes the cache may take."""
    if settings.cache_gib is not None:
        return int(settings.cache_gib * hardware.GIB)
    if loaded.cache_bytes is not None:
        return loaded.cache_bytes
    return hardware.cache_bytes(loaded.device)
