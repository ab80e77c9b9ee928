"""The backend ``varlen``: torch's attention for sequences of different lengths, over paged keys.

All decodes and chunks of a step are one call of ``torch.nn.attention.varlen``, which is
FlashAttention on CUDA devices. It reads the blocks of the cache in place. Keys are not split
between programs: the split would depend on the longest sequence of a step, and answers with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.cache.kv_cache import KVPools
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)

CAPABILITIES = AttentionCapabilities(
    devices=frozenset({"cuda"}),
    dtypes=frozenset({"float16", "bfloat16"}),
    sliding_windows=True,
    fixed_shapes=True,
    reads_in_place=True,
)


@dataclass(slots=True)
class Lengths:
    """The sequences of a step, as the function expects them.

    Attributes:
        arrays: int64, on the device: where the rows of each sequence start, the tokens that it has,
            and its blocks.
        most_rows: new tokens of a sequence, at most.
        most_tokens: tokens of a sequence, at most.
        window: tokens before itself that each token sees, and after itself; -1 is all.
    """

    arrays: tuple[torch.Tensor, ...]
    most_rows: int
    most_tokens: int
    window: tuple[int, int]
    _short: tuple[torch.Tensor, ...] = field(default=(), repr=False)

    def short(self) -> tuple[torch.Tensor, ...]:
        """Return the arrays as int32, converted once in a step; they have been sent."""
        if not self._short:
            self._short = tuple(array.int() for array in self.arrays)
        return self._short


class VarlenAttention:
    """Attends with one call for all sequences of a step.

    Args:
        function: with the arguments of ``torch.nn.attention.varlen.varlen_attn``; None takes it.
        capabilities: of the function.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor] | None = None,
        capabilities: AttentionCapabilities = CAPABILITIES,
    ) -> None:
        self._function: Callable[..., Any] = function or _own_function()
        self._capabilities = capabilities
        self._block_tokens = 0

    @property
    def capabilities(self) -> AttentionCapabilities:
        """Causal layers in half precision, with or without a window."""
        return self._capabilities

    def prepare(self, needs: AttentionNeeds) -> None:
        """Take note of the size of blocks."""
        self._block_tokens = needs.block_tokens

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Lengths:
        """Return what layers of a kind read."""
        starts, lengths = step.query_starts, step.lengths
        arrays = tuple(map(uploads.add, (starts, lengths, step.block_table)))
        window = -1 if kind.window is None else kind.window - 1
        most_rows = max(sequence.num_tokens for sequence in step.sequences)
        most_tokens = step.table_tokens if step.has_fixed_shapes else int(lengths.max())
        return Lengths(arrays, most_rows, most_tokens, (window, 0))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Store the new keys and values, and attend with all rows at once."""
        pools, plan = call.pools, call.plan
        assert isinstance(pools, KVPools)  # noqa: S101 - it does not state ``int8_cache``
        pools.write(call.step.write_slots, call.key, call.value)
        keys, values = pools.blocks(self._block_tokens)
        starts, lengths, table = plan.short()
        out: torch.Tensor = self._function(
            call.query.transpose(0, 1).contiguous(),
            *(keys, values),
            *(starts, None, plan.most_rows, plan.most_tokens),
            scale=call.parameters.scale,
            window_size=plan.window,
            enable_gqa=call.query.shape[0] != call.key.shape[0],
            seqused_k=lengths,
            block_table=table,
            num_splits=1,
        )
        return out


def _own_function() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn

    function: Callable[..., Any] = varlen_attn
    return function
