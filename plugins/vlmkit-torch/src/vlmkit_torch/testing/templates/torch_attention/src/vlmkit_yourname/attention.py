"""Attention in double precision, one sequence after the other."""

from typing import NamedTuple

import torch

from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)


class _Read(NamedTuple):
    """What the new tokens of one sequence read.

    Attributes:
        rows: the tokens in the flat step.
        slots: ``[width]`` cache slots of the sequence.
        start: ``[tokens]`` first slot of these that each token sees.
        stop: ``[tokens]`` one past the last.
        dense: ``[tokens, width]`` bool, if a range has holes.
    """

    rows: slice
    slots: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    dense: torch.Tensor | None


class ExactAttention:
    """Attends in double precision, whatever the precision of the model."""

    @property
    def capabilities(self) -> AttentionCapabilities:
        """All of them: the method is written out below."""
        return AttentionCapabilities(
            unequal_head_sizes=True,
            sliding_windows=True,
            chunked_attention=True,
            softcaps=True,
            sinks=True,
            image_spans=True,
            int8_cache=True,
        )

    def prepare(self, needs: AttentionNeeds) -> None:
        """Need nothing of the model."""

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> list[_Read]:
        """Return what each sequence reads; it never reads slots of others."""
        reads = []
        for number, new in enumerate(step.sequences):
            seen = new.visible(kind)
            reads.append(
                _Read(
                    slice(int(step.query_starts[number]), int(step.query_starts[number + 1])),
                    uploads.add(new.slots),
                    uploads.add(seen.start),
                    uploads.add(seen.stop),
                    seen.dense,
                )
            )
        return reads

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the new keys and values, and attend sequence by sequence."""
        call.pools.write(call.step.write_slots, call.key, call.value)
        reads: list[_Read] = call.plan
        return torch.cat([_attend(call, read) for read in reads])


def _attend(call: AttentionCall, read: _Read) -> torch.Tensor:
    """Return ``[tokens, heads, value_head]`` of one sequence."""
    parameters, heads = call.parameters, call.query.shape[0]
    group = heads // call.key.shape[0]
    query = call.query[:, read.rows].double()
    cached = (call.pools.read_keys(read.slots), call.pools.read_values(read.slots))
    keys, values = (each.double().transpose(0, 1).repeat_interleave(group, 0) for each in cached)
    scores = query @ keys.transpose(1, 2) * parameters.scale
    if parameters.softcap is not None:
        scores = torch.tanh(scores / parameters.softcap) * parameters.softcap
    scores = scores.masked_fill(~_visible(read), -torch.inf)
    if parameters.sinks is not None:
        sinks = parameters.sinks.double().view(heads, 1, 1).expand(-1, query.shape[1], -1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1)[..., : len(read.slots)]
    return (weights @ values).transpose(0, 1).to(call.value.dtype)


def _visible(read: _Read) -> torch.Tensor:
    """Return ``[tokens, width]``: which slots each token sees."""
    column = torch.arange(len(read.slots), device=read.slots.device)
    visible = (column >= read.start[:, None]) & (column < read.stop[:, None])
    return visible if read.dense is None else visible & read.dense
