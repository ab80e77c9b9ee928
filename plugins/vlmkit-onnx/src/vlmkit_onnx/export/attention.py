"""The attention functions of an export: one records shapes, one emits ONNX Runtime's operator.

transformers calls an attention function in every layer, with queries and keys already rotated by
the family's own code. :class:`ShapeProbe` records the shape of each layer. :class:`SlotAttention`
emits GroupQueryAttention over a slot of the cache. Both refuse unknown arguments, and neither
computes attention outside an export.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vlmkit.errors import CheckpointError
from vlmkit_torch.attention.interface import AttentionFunction, AttentionOptions, Projections

OPERATOR = "com.microsoft::GroupQueryAttention"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's attention.

    Attributes:
        num_heads: of the queries.
        num_kv_heads: of keys and values.
        head_size: of each head.
        window: tokens that a token sees, itself included; None means all.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int | None


class ShapeProbe(AttentionFunction):
    """Records each layer's shape and returns zeros.

    Args:
        windows: of each layer by the family's configuration; None means all tokens.
    """

    def __init__(self, windows: list[int | None]) -> None:
        self.windows = windows
        self.layers: dict[int, LayerShape] = {}

    def _attend(
        self, module: nn.Module, states: Projections, options: AttentionOptions
    ) -> torch.Tensor:
        query, key, value = states
        index = _layer_of(module, len(self.windows))
        if index in self.layers:
            raise CheckpointError("a layer of the model attends twice; it cannot be exported")
        if key.shape != value.shape:
            raise CheckpointError(
                f"the model's keys are {key.shape[-1]} wide and its values {value.shape[-1]}; "
                "only equal widths can be exported"
            )
        self.layers[index] = LayerShape(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_size=key.shape[3],
            window=options.window or self.windows[index],
        )
        return query.new_zeros(query.transpose(1, 2).shape)


@dataclass(slots=True)
class SlotInputs:
    """What a traced decoder's attention reads besides queries.

    Attributes:
        past: keys and values of each layer in turn, ``[sequences, kv_heads, slot, head]``.
        seqlens_k: ``[sequences]`` tokens of each sequence with the new ones, less one.
        total: tokens of the longest sequence.
        bias: additive masks ``[sequences, 1, seq, total]``: one for layers that see all tokens, one
            for layers with a window; None if the graph builds the masks.
        deepstack: rows ``[levels, sequences, seq, hidden]`` that are added between layers, if
            any.
    """

    past: list[torch.Tensor]
    seqlens_k: torch.Tensor
    total: torch.Tensor
    bias: tuple[torch.Tensor, torch.Tensor] | None = None
    deepstack: torch.Tensor | None = None


class SlotAttention(AttentionFunction):
    """Emits GroupQueryAttention over a slot's keys and values.

    Attributes:
        inputs: of the traced forward pass.
        present: keys and values with the new ones, by layer; filled by the pass.

    Args:
        layers: their shapes.
    """

    def __init__(self, layers: tuple[LayerShape, ...]) -> None:
        self.inputs: SlotInputs | None = None
        self.present: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._layers = layers

    def begin(self, inputs: SlotInputs) -> None:
        """Start a forward pass."""
        self.inputs = inputs
        self.present.clear()

    def _attend(
        self, module: nn.Module, states: Projections, options: AttentionOptions
    ) -> torch.Tensor:
        if self.inputs is None:
            raise RuntimeError("attention was called outside a pass")
        index = _layer_of(module, len(self._layers))
        layer, query = self._layers[index], states.query
        attributes: dict[str, Any] = {
            "num_heads": layer.num_heads,
            "kv_num_heads": layer.num_kv_heads,
            "scale": float(options.scale),
        }
        if options.softcap:
            attributes["softcap"] = float(options.softcap)
        bias = None
        if self.inputs.bias is not None:
            attributes["causal"] = 0
            bias = self.inputs.bias[1 if layer.window else 0]
        elif layer.window:
            attributes["local_window_size"] = layer.window
        tensors = [*map(_flat, states), *self._slot(index), None, None, None]
        sinks = None if options.sinks is None else options.sinks.reshape(-1).to(query.dtype)
        out = self._emit(index, [*tensors, bias, sinks], attributes)
        return out.view(query.transpose(1, 2).shape)

    def _slot(self, index: int) -> list[torch.Tensor]:
        """Return one layer's inputs 3 to 6."""
        assert self.inputs is not None  # noqa: S101 - the caller checks it
        past = self.inputs.past[2 * index : 2 * index + 2]
        return [*past, self.inputs.seqlens_k, self.inputs.total]

    def _emit(
        self, index: int, tensors: list[torch.Tensor | None], attributes: dict[str, Any]
    ) -> torch.Tensor:
        while tensors[-1] is None:
            tensors.pop()
        query, past_key, past_value = tensors[0], tensors[3], tensors[4]
        assert query is not None and past_key is not None and past_value is not None  # noqa: S101, PT018
        made = torch.onnx.ops.symbolic_multi_out(
            OPERATOR,
            tensors,
            attributes,
            dtypes=(query.dtype, past_key.dtype, past_value.dtype),
            shapes=(query.shape, past_key.shape, past_value.shape),
            version=1,
        )
        self.present[index] = (made[1], made[2])
        return made[0]


def _flat(heads: torch.Tensor) -> torch.Tensor:
    """Return ``[rows, heads, seq, head]`` as ``[rows, seq, heads * head]``."""
    rows, num_heads, seq, size = heads.shape
    return heads.transpose(1, 2).reshape(rows, seq, num_heads * size)


def _layer_of(module: nn.Module, num_layers: int) -> int:
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int) or not 0 <= index < num_layers:
        raise CheckpointError("an attention of the model is not one of its layers'; not supported")
    return index
