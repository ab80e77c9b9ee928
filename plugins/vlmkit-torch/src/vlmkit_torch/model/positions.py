"""Parts of a decoder that depend on what else is in a call: made to depend on positions alone.

Two mechanisms would let one sequence of a step change another's answer:

- Rotary frequencies. Some families (``longrope``, ``dynamic``) choose the frequencies of all tokens
  of a call by the highest position in it. A long neighbour or another chunk size would change a
  short answer. :func:`fix_rotary_frequencies` makes every call choose as if it held the longest
  sequence that the engine accepts.
- Attention temperature. Llama 4 scales queries by the number of tokens in its own cache. The engine
  gives it no cache, and the tokens of a step belong to many sequences.
  :func:`fix_attention_temperature` derives the number from the positions.

The frequencies and the scale are computed by the family's own code.
"""

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from vlmkit_torch.model.views import Views

logger = logging.getLogger(__name__)

LONG = "longrope"
DYNAMIC = "dynamic"


def tokens_before_change(config: Any) -> int | None:
    """Return the longest sequence that has the frequencies of short ones.

    None means that the family's frequencies never change.
    """
    bounds = [_bound(config, table) for table in _tables(config)]
    return min((bound for bound in bounds if bound is not None), default=None)


def fix_rotary_frequencies(views: Views, max_sequence_tokens: int) -> None:
    """Make every later call use the frequencies of sequences of ``max_sequence_tokens``."""
    for module in views.decoder.modules():
        kinds = getattr(module, "rope_type", None)
        if any(map(follows_length, kinds.values() if isinstance(kinds, dict) else [kinds])):
            _anchor(module, max_sequence_tokens - 1)
    config = views.text_config
    unchanged = tokens_before_change(config)
    if unchanged is not None and unchanged < max(
        max_sequence_tokens, config.max_position_embeddings
    ):
        logger.warning(
            "model type %r has rotary frequencies for up to %d tokens and others for more; "
            "engine.max_sequence_tokens is %d, so every sequence is read with %s",
            views.model.config.model_type,
            unchanged,
            max_sequence_tokens,
            "the first" if max_sequence_tokens <= unchanged else "the others",
        )


def fix_attention_temperature(decoder: nn.Module) -> None:
    """Make layers that scale queries by their distance derive it from positions."""
    for layer in decoder.modules():
        if any(getattr(part, "attn_temperature_tuning", False) for part in layer.children()):
            _pass_position_offsets(layer)


def follows_length(kind: Any) -> bool:
    """Return whether frequencies of this RoPE type follow the highest position."""
    return isinstance(kind, str) and (kind == LONG or DYNAMIC in kind)


def _tables(config: Any) -> Iterator[dict[str, Any]]:
    """Yield a configuration's RoPE parameters: one table, or one for each layer type."""
    stated = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in stated:
        yield stated
        return
    yield from (table for table in stated.values() if isinstance(table, dict))


def _bound(config: Any, table: dict[str, Any]) -> int | None:
    kind, longest = table.get("rope_type"), int(config.max_position_embeddings)
    if not follows_length(kind):
        return None
    return min(longest, int(table.get("original_max_position_embeddings") or longest))


def _anchor(module: nn.Module, position: int) -> None:
    """Append a position to those of each call of a module, and remove its rows from the result."""
    signature = inspect.signature(module.forward)

    def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        call = signature.bind(*args, **kwargs)
        positions: torch.Tensor = call.arguments["position_ids"]
        last = torch.full_like(positions[..., :1], position)
        call.arguments["position_ids"] = torch.cat([positions, last], -1)
        return call.args, call.kwargs

    def after(_: nn.Module, __: Any, made: Any) -> Any:
        if isinstance(made, torch.Tensor):
            return made[..., :-1, :]
        return tuple(rows[..., :-1, :] for rows in made)

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _pass_position_offsets(layer: nn.Module) -> None:
    signature = inspect.signature(layer.forward)

    def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        call = signature.bind(*args, **kwargs)
        positions = call.arguments.get("position_ids")
        if positions is not None and call.arguments.get("past_key_values") is None:
            call.arguments["past_key_values"] = _PositionOffsets(positions[0])
        return call.args, call.kwargs

    layer.register_forward_pre_hook(before, with_kwargs=True)


class _PositionOffsets:
    """Replaces the cache that a layer counts tokens in, and stores nothing.

    Args:
        positions: ``[tokens]`` of a step.
    """

    def __init__(self, positions: torch.Tensor) -> None:
        self._offsets = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, _layer: int = 0) -> torch.Tensor:
        """Return, for each token of the step, its position less its index in the step."""
        return self._offsets

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values unchanged: the attention function stores them."""
        return keys, values
