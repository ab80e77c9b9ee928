"""A step of attention in one layer, over a small cache of random numbers.

With it, a backend is compared with another one or with attention that is written out.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import Visibility
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.step import NewTokens, StepTokens, step_tokens
from vlmkit_torch.cache.kv_cache import Int8Pools, KVPools
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import AttentionBackend, AttentionCall, LayerNeeds

BLOCK_TOKENS = 4
NUM_BLOCKS = 64  # at least, so that some have stale numbers


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


class SampleStep:
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
        block_tokens: tokens in a block of the cache.
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
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.layer = layer
        self._has_int8_cache = has_int8_cache
        self.uploads = uploads or Uploads(device)
        self._device = device
        self._random = torch.Generator().manual_seed(seed)
        num_needed = sum(-(-(part.first + part.count) // block_tokens) for part in parts)
        self._block_tokens, self._num_blocks = block_tokens, max(NUM_BLOCKS, num_needed)
        blocks = torch.randperm(self._num_blocks, generator=self._random).tolist()
        self._new = [_placed(part, blocks, block_tokens) for part in parts]
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
            block_tokens,
            self._num_blocks * block_tokens,
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

    def widen(self, table_blocks: int) -> None:
        """Give the step, which has decodes alone, a table of at least so many blocks."""
        self.tokens = replace(self.tokens, table_blocks=table_blocks)

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

    def _normal(self, *shape: int) -> torch.Tensor:
        numbers = torch.randn(shape, generator=self._random)
        return numbers.to(self._device, self.layer.dtype)

    def _filled(self, stale: float) -> KVPools | Int8Pools:
        """Return pools with the tokens before the step, a block of zeros, and stale slots."""
        layer, num_slots = self.layer, (self._num_blocks + 1) * self._block_tokens
        slots_heads = (num_slots, layer.num_kv_heads)
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
            pool[-self._block_tokens :] = 0
        return pools

    def _full(self, shape: tuple[int, ...], number: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, number, dtype=dtype, device=self._device)


def tensors_of(pools: KVPools | Int8Pools) -> list[torch.Tensor]:
    """Return the tensors that hold keys and values, and their scales if there are some."""
    return [each for each in pools if isinstance(each, torch.Tensor)]


def _placed(part: Part, blocks: list[int], block_tokens: int) -> NewTokens:
    """Take blocks for a sequence."""
    stop = part.first + part.count
    own = np.array([blocks.pop() for _ in range(-(-stop // block_tokens))], dtype=np.int64)
    slots = (own[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)[:stop]
    return NewTokens(part.first, slots, part.views)
