"""A step of attention in one layer over a small cache, and the same written out token by token."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.step import NewTokens, StepTokens, step_tokens
from vlmkit_torch.cache.int8 import dequantized, quantized
from vlmkit_torch.cache.kv_cache import Int8Pools, KVPools
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCall,
    AttentionNeeds,
    LayerNeeds,
)

BLOCK_TOKENS = 4
NUM_BLOCKS = 64
SCALE = 0.3


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one sequence: how many are in the cache before them, and how many are new.

    Attributes:
        first: tokens before.
        count: new tokens.
        views: the family's masks, if they are not simply causal.
    """

    first: int
    count: int
    views: dict[str, Visibility] = field(default_factory=dict)


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


class AttentionCase:
    """A step in one layer: random queries, keys and values, at scattered blocks of a cache.

    Attributes:
        layer: the layer.
        tokens: of the step.
        pools: the layer's keys and values; tokens before the step are there.

    Args:
        layer: heads, sizes and parameters.
        parts: decodes (one new token, with others before) first, then chunks.
        device: that computes.
        num_decodes: how many of ``parts`` are decodes.
        stale: what slots hold that no sequence has.
        seed: of random numbers.
        uploads: carries index arrays.
        has_int8_cache: whether the cache has 8 bits.
    """

    def __init__(
        self,
        layer: LayerNeeds,
        parts: Seq[Part],
        device: torch.device,
        *,
        num_decodes: int = 0,
        stale: float = 7.0,
        seed: int = 0,
        uploads: Uploads | None = None,
        has_int8_cache: bool = False,
    ) -> None:
        self.layer = layer
        self._has_int8_cache = has_int8_cache
        self.uploads = uploads or Uploads(device)
        self._device = device
        self._random = torch.Generator().manual_seed(seed)
        blocks = torch.randperm(NUM_BLOCKS, generator=self._random).tolist()
        self._new = [_placed(part, blocks) for part in parts]
        lengths = [len(new.slots) for new in self._new]
        self._keys = [self._normal(layer.num_kv_heads, n, layer.head_size) for n in lengths]
        self._values = [self._normal(layer.num_kv_heads, n, layer.value_head_size) for n in lengths]
        total = sum(part.count for part in parts)
        self.query = self._normal(layer.num_heads, total, layer.head_size)
        self.sinks = self._normal(layer.num_heads) if layer.has_sinks else None
        self.pools = self._filled(stale)
        self.tokens: StepTokens = step_tokens(
            self._new[:num_decodes],
            self._new[num_decodes:],
            BLOCK_TOKENS,
            NUM_BLOCKS * BLOCK_TOKENS,
            self.uploads,
        )

    @property
    def key(self) -> torch.Tensor:
        """``[kv_heads, tokens, head]`` of the step."""
        return torch.cat([k[:, n.first :] for k, n in zip(self._keys, self._new, strict=True)], 1)

    @property
    def value(self) -> torch.Tensor:
        """``[kv_heads, tokens, value_head]`` of the step."""
        parts = zip(self._values, self._new, strict=True)
        return torch.cat([values[:, new.first :] for values, new in parts], 1)

    @property
    def new_slots(self) -> list[int]:
        """The slots of the new tokens."""
        return [slot for new in self._new for slot in new.slots[new.first :].tolist()]

    def call(self, plan: object) -> AttentionCall:
        """Return the arguments of ``attend``."""
        layer = self.layer
        parameters = AttentionParameters(
            layer.index, layer.kind, layer.scale, layer.softcap, self.sinks
        )
        return AttentionCall(
            self.query, self.key, self.value, self.pools, parameters, self.tokens, plan
        )

    def run(self, backend: AttentionBackend) -> torch.Tensor:
        """Return the result of a backend that is prepared."""
        plan = backend.plan(self.tokens, self.layer.kind, self.uploads)
        self.uploads.send()
        return backend.attend(self.call(plan))

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

    def _normal(self, *shape: int) -> torch.Tensor:
        numbers = torch.randn(shape, generator=self._random)
        return numbers.to(self._device, self.layer.dtype)

    def _stored(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return keys or values as the cache holds them."""
        if not self._has_int8_cache:
            return vectors
        return dequantized(*quantized(vectors), self.layer.dtype)

    def _filled(self, stale: float) -> KVPools | Int8Pools:
        """Return pools with the tokens before the step, a block of zeros, and stale slots."""
        layer, slots_heads = self.layer, ((NUM_BLOCKS + 1) * BLOCK_TOKENS, self.layer.num_kv_heads)
        dtype = torch.int8 if self._has_int8_cache else layer.dtype
        stale_number = 7 if self._has_int8_cache else stale
        pools: KVPools | Int8Pools = KVPools(
            self._full((*slots_heads, layer.head_size), stale_number, dtype),
            self._full((*slots_heads, layer.value_head_size), stale_number, dtype),
        )
        if self._has_int8_cache:
            key_scales, value_scales = (
                self._full(slots_heads, stale, torch.float32) for _ in range(2)
            )
            pools = Int8Pools(pools.keys, pools.values, key_scales, value_scales, layer.dtype)
        for new, keys, values in zip(self._new, self._keys, self._values, strict=True):
            slots = torch.from_numpy(new.slots[: new.first]).to(self._device)
            pools.write(slots, keys[:, : new.first], values[:, : new.first])
        for pool in tensors_of(pools):
            pool[-BLOCK_TOKENS:] = 0
        return pools

    def _full(self, shape: tuple[int, ...], number: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, number, dtype=dtype, device=self._device)


def tensors_of(pools: KVPools | Int8Pools) -> list[torch.Tensor]:
    """Return the tensors that hold keys and values, and their scales if there are some."""
    return [each for each in pools if isinstance(each, torch.Tensor)]


def _placed(part: Part, blocks: list[int]) -> NewTokens:
    """Take blocks for a sequence."""
    stop = part.first + part.count
    own = np.array([blocks.pop() for _ in range(-(-stop // BLOCK_TOKENS))], dtype=np.int64)
    slots = (own[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).reshape(-1)[:stop]
    return NewTokens(part.first, slots, part.views)


def _indices(seen: Visibility, offset: int) -> list[int]:
    """Return the tokens that one new token sees."""
    index = range(int(seen.start[offset]), int(seen.stop[offset]))
    return [i for i in index if seen.dense is None or bool(seen.dense[offset, i])]


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
