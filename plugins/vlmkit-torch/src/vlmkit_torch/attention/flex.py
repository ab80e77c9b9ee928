"""The backend ``flex``: torch's FlexAttention for the chunks of prompts, with any mask.

A mask is a rule here, not a matrix of scores. Spans of an image, windows, sections, soft caps and
sinks are part of one kernel. Torch compiles it on CUDA devices, and computes it step by step
elsewhere. Decodes are computed as by ``sdpa``.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.attention import flex_attention as flex

from vlmkit_torch.attention.key_ranges import KeyRange, KeyRanges
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.sdpa import EVERYTHING, SdpaAttention, attend_decodes, read_slots
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import AttentionCall, AttentionCapabilities

# Without a compiler, torch would otherwise trace every size of a step anew.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # noqa: SLF001 - torch's own warning names it


class FlexPlan(NamedTuple):
    """What a step reads in layers of one kind, and the masks of its chunks, made at first use."""

    ranges: KeyRanges
    masks: dict[int, Any]


class FlexAttention(SdpaAttention):
    """Attends with the chunks of a step by rules of masks and scores."""

    @property
    def capabilities(self) -> AttentionCapabilities:
        """All that the engine supports, but an 8-bit cache."""
        return replace(EVERYTHING, int8_cache=False)

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        """Return what layers of a kind read."""
        return FlexPlan(super().plan(step, kind, uploads), {})

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Store the new keys and values, and attend: decodes in batches, then chunk by chunk."""
        plan: FlexPlan = call.plan
        call.pools.write(call.step.write_slots, call.key, call.value)
        parts = attend_decodes(call, plan.ranges.decodes)
        for number, read in enumerate(plan.ranges.chunks):
            if number not in plan.masks:
                plan.masks[number] = _block_mask(read, call.query.device)
            parts.append(_chunk(call, read, plan.masks[number]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _block_mask(read: KeyRange, device: torch.device) -> Any:
    """Return which keys each query of a chunk sees; None if it sees all."""
    visible = read.visible
    if visible is None:
        return None
    start, stop, dense = visible.start, visible.stop, visible.dense

    def sees(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        is_seen = key < stop[query]
        if start is not None:
            is_seen &= key >= start[query]
        return is_seen if dense is None else is_seen & dense[query, key]

    num_queries = read.rows[1] - read.rows[0]
    return flex.create_block_mask(sees, None, None, num_queries, visible.width, device=str(device))


def _chunk(call: AttentionCall, read: KeyRange, mask: Any) -> torch.Tensor:
    """Attend with several queries of one sequence; return ``[count, heads, value_head]``."""
    parameters = call.parameters
    query = call.query[None, :, slice(*read.rows)]
    keys, values = read_slots(call.pools, read.parts[0], 1)
    sinks = parameters.sinks
    out, more = _function(query.device.type)(
        query,
        keys,
        values,
        score_mod=None if parameters.softcap is None else _capped(parameters.softcap),
        block_mask=mask,
        scale=parameters.scale,
        enable_gqa=query.shape[1] != keys.shape[1],
        return_aux=flex.AuxRequest(lse=True),
    )
    if sinks is not None:  # a further score without a value
        out = out * torch.sigmoid(more.lse - sinks[None, :, None])[..., None].to(out.dtype)
    attended: torch.Tensor = out[0].transpose(0, 1)
    return attended


def _capped(cap: float) -> Callable[..., torch.Tensor]:
    """Return the rule that squashes scores into plus or minus ``cap``."""

    def capped(score: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.tanh(score / cap) * cap

    return capped


@cache
def _function(device_type: str) -> Callable[..., Any]:
    """Return torch's function for a device, compiled where it has a kernel."""
    own: Any = flex.flex_attention
    return torch.compile(own, dynamic=True) if device_type == "cuda" else own
