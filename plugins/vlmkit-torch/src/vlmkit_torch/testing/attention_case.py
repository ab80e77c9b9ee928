"""A step of attention in one layer over a small cache, and the same written out token by token."""

from collections.abc import Sequence as Seq
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.attention.sample_step import BLOCK_TOKENS, Part, SampleStep, tensors_of
from vlmkit_torch.cache.int8 import dequantized, quantized
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import AttentionNeeds, LayerNeeds

__all__ = [
    "BLOCK_TOKENS",
    "AttentionCase",
    "LateUploads",
    "Part",
    "form_of",
    "needs_of",
    "plain_layer",
    "tensors_of",
]
SCALE = 0.3


class LateUploads(Uploads):
    """Arrays hold minus one until they are sent, as on a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._waiting: list[tuple[torch.Tensor, np.ndarray]] = []

    def add(self, array: np.ndarray) -> torch.Tensor:
        """Return a tensor that ``send`` fills."""
        target = torch.full(array.shape, -1, dtype=torch.int64, device=self._device)
        self._waiting.append((target, array.copy()))
        return target

    def send(self) -> None:
        """Fill the tensors."""
        for target, array in self._waiting:
            target.copy_(torch.from_numpy(array))
        self._waiting.clear()


class AttentionCase(SampleStep):
    """A step whose result is known. Arguments and attributes are those of :class:`.SampleStep`."""

    def written_out(self) -> torch.Tensor:
        """Return ``[tokens, heads, value_head]`` in float64, token by token and head by head.

        With an 8-bit cache, all keys and values are as it holds them, those of the step included.
        """
        rows, row = [], 0
        for new, *own in zip(self._new, self._keys, self._values, strict=True):
            keys, values = map(self._stored, own)
            seen = new.visible(self.layer.kind)
            for offset in range(new.num_tokens):
                index = _indices(seen, offset)
                rows.append(self._row(row, keys[:, index].double(), values[:, index].double()))
                row += 1
        return torch.stack(rows)

    def _row(self, row: int, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return one token's ``[heads, value_head]``."""
        layer, heads = self.layer, []
        for head in range(layer.num_heads):
            own = head * layer.num_kv_heads // layer.num_heads
            scores = keys[own] @ self.query[head, row].double() * layer.scale
            if layer.softcap is not None:
                scores = torch.tanh(scores / layer.softcap) * layer.softcap
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[head : head + 1].double()])
            weights = scores.softmax(-1)[: keys.shape[1]]
            heads.append(weights @ values[own])
        return torch.stack(heads)

    def _stored(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return keys or values as the cache holds them."""
        if not self._has_int8_cache:
            return vectors
        return dequantized(*quantized(vectors), self.layer.dtype)


def _indices(seen: Visibility, offset: int) -> list[int]:
    """Return the tokens that one new token sees."""
    index = range(int(seen.start[offset]), int(seen.stop[offset]))
    return [i for i in index if seen.dense is None or bool(seen.dense[offset, i])]


def form_of(plan: Any) -> Any:
    """Return all of a plan but the values of its tensors, comparable."""
    if isinstance(plan, torch.Tensor):
        return ("tensor", tuple(plan.shape), plan.dtype)
    if isinstance(plan, tuple | list):
        return (type(plan).__name__, *map(form_of, plan))
    if isinstance(plan, dict):
        return ("dict", *((name, form_of(each)) for name, each in plan.items()))
    if is_dataclass(plan):
        return (type(plan).__name__, *(form_of(getattr(plan, f.name)) for f in fields(plan)))
    return plan


def plain_layer(dtype: torch.dtype, head_size: int) -> LayerNeeds:
    """Return a layer that every backend supports."""
    return LayerNeeds(
        index=0,
        kind=LayerKind("full_attention"),
        dtype=dtype,
        num_heads=4,
        num_kv_heads=2,
        head_size=head_size,
        value_head_size=head_size,
        scale=SCALE,
        softcap=None,
        has_sinks=False,
    )


def needs_of(
    layers: Seq[LayerNeeds],
    device: torch.device,
    *,
    has_image_spans: bool = False,
    has_int8_cache: bool = False,
) -> AttentionNeeds:
    """Return the needs of a model with some layers."""
    numbered = tuple(replace(layer, index=index) for index, layer in enumerate(layers))
    return AttentionNeeds(
        device,
        layers[0].dtype,
        BLOCK_TOKENS,
        numbered,
        has_image_spans=has_image_spans,
        has_int8_cache=has_int8_cache,
    )
