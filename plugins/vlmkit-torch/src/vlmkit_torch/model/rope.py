"""Rotary frequencies that change with length: one choice for all calls of an engine.

Some families (``longrope``, ``dynamic``) look at the highest position in a call and choose by it
how all tokens of the call are rotated. Left to that, a long neighbour would change a short answer,
and so would the place where a prompt is cut. Here they choose in each call as if the longest
sequence that the engine takes stood in it. The choice itself is the family's own.
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
    """Return the longest sequence that is read with a short one's frequencies.

    None where a family's frequencies never change.
    """
    bounds = [_bound(config, table) for table in _tables(config)]
    return min((bound for bound in bounds if bound is not None), default=None)


def settle(views: Views, max_sequence_tokens: int) -> None:
    """Let frequencies be those of sequences of so many tokens, in every call, for good."""
    for module in views.decoder.modules():
        kinds = getattr(module, "rope_type", None)
        if any(map(changes, kinds.values() if isinstance(kinds, dict) else [kinds])):
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


def changes(kind: Any) -> bool:
    """Tell whether frequencies of this kind follow the highest position."""
    return isinstance(kind, str) and (kind == LONG or DYNAMIC in kind)


def _tables(config: Any) -> Iterator[dict[str, Any]]:
    """Yield what a configuration says of rotation: one table, or one for each kind of layer."""
    stated = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in stated:
        yield stated
        return
    yield from (table for table in stated.values() if isinstance(table, dict))


def _bound(config: Any, table: dict[str, Any]) -> int | None:
    kind, longest = table.get("rope_type"), int(config.max_position_embeddings)
    if not changes(kind):
        return None
    return min(longest, int(table.get("original_max_position_embeddings") or longest))


def _anchor(module: nn.Module, position: int) -> None:
    """Put a position behind those of each call of a module, and take its rows away again."""
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
