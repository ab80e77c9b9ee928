"""The attention function that transformers calls in every layer of a decoder.

Passes a layer's queries, keys and values to the backend of the engine, or to the cross-attention of
the layer. Refuses unknown arguments, because ignoring them would give wrong answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import AttentionInterface

from vlmkit_torch.attention.interface import AttentionFunction, AttentionOptions, Projections
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.step import Step
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCall,
    LayerNeeds,
)

IMPLEMENTATION = "vlmkit_paged"  # not registered for masks: the models then build none
LAYER_ATTRIBUTE = "vlmkit_layer"


def attend_step(
    layer: "Layer",
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Let the backend store the new keys and values ``[1, kv_heads, tokens, head]``, and attend.

    Returns:
        ``[tokens, heads, value_head]``.
    """
    context, step = layer.context, layer.context.step
    if step is None:
        raise RuntimeError("attention was called outside a step")
    query, key, value = query[0], key[0], value[0]
    if layer.index not in context.layers:
        context.layers[layer.index] = _needs(query, key, value, parameters)
    pools = context.cache.pools(layer.index, key, value)
    plan = step.plan_of(parameters.kind)
    call = AttentionCall(query, key, value, pools, parameters, step.tokens, plan)
    return context.backend.attend(call)


@dataclass(slots=True)
class AttentionContext:
    """The state of one engine that its attention layers share.

    Attributes:
        cache: keys and values.
        backend: that computes.
        step: the current forward pass.
        layers: the layers that were computed so far, by index.
        kinds: of these layers.
        attend_step: :func:`attend_step`, or a function that calls it.
    """

    cache: KVCache
    backend: AttentionBackend
    step: Step | None = None
    layers: dict[int, LayerNeeds] = field(default_factory=dict)
    kinds: set[LayerKind] = field(default_factory=set)
    attend_step: Callable[..., torch.Tensor] = attend_step


CrossAttentionFunction = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, AttentionParameters], torch.Tensor
]
"""The attention of a layer that attends to images, not tokens; see ``cross_attention``."""


class Layer:
    """One layer's attention: over the cache, or to images by its own function."""

    def __init__(
        self,
        context: AttentionContext,
        index: int,
        kind: LayerKind,
        cross_attention: CrossAttentionFunction | None = None,
    ) -> None:
        self.context = context
        self.index = index
        self.kind = kind
        self.cross_attention = cross_attention
        self._kinds: dict[int | None, LayerKind] = {}

    def kind_with(self, window: int | None) -> LayerKind:
        """Return the layer's kind, with the window that the family's code passes, if any."""
        if window not in self._kinds:
            kind = self.kind if window is None else self.kind._replace(window=window)
            self._kinds[window] = kind
            self.context.kinds.add(kind)
        return self._kinds[window]


def install() -> None:
    """Register the function with transformers; repeated calls have no effect."""
    AttentionInterface.register(IMPLEMENTATION, attend)


def bind(
    decoder: nn.Module,
    context: AttentionContext,
    kinds: list[LayerKind],
    cross_attention: Mapping[int, CrossAttentionFunction] | None = None,
) -> None:
    """Attach layer and context to every attention module of a decoder.

    Args:
        decoder: of one model.
        context: of one engine.
        kinds: of its layers.
        cross_attention: the functions of the layers that attend to images, by index.
    """
    functions = cross_attention or {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and 0 <= index < len(kinds):
            layer = Layer(context, index, kinds[index], functions.get(index))
            setattr(module, LAYER_ATTRIBUTE, layer)


class PagedAttention(AttentionFunction):
    """Computes one layer's attention over the current step.

    Accepts one row with all tokens of the step, or one row of one token for each sequence.
    """

    def _attend(
        self, module: nn.Module, states: Projections, options: AttentionOptions
    ) -> torch.Tensor:
        query, key, value = states
        layer: Layer = getattr(module, LAYER_ATTRIBUTE)
        scores = (options.scale, options.softcap, options.sinks)
        if layer.cross_attention is not None:
            parameters = AttentionParameters(layer.index, layer.kind, *scores)
            return layer.cross_attention(query, key, value, parameters)[None]
        kind = layer.kind_with(options.window)
        parameters = AttentionParameters(layer.index, kind, *scores)
        if query.shape[0] == 1:
            return layer.context.attend_step(layer, query, key, value, parameters)[None]
        # One token of each sequence in a column, as recurrent layers expect.
        query, key, value = (rows.transpose(0, 2) for rows in states)
        return layer.context.attend_step(layer, query, key, value, parameters)[:, None]


attend = PagedAttention()


def _needs(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parameters: AttentionParameters
) -> LayerNeeds:
    return LayerNeeds(
        index=parameters.index,
        kind=parameters.kind,
        dtype=key.dtype,
        num_heads=query.shape[0],
        num_kv_heads=key.shape[0],
        head_size=key.shape[2],
        value_head_size=value.shape[2],
        scale=parameters.scale,
        softcap=parameters.softcap,
        has_sinks=parameters.sinks is not None,
    )
