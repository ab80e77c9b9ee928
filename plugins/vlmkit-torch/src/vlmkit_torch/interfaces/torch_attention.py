"""Attention over the paged cache, the kind ``torch_attention``. Importing this imports no torch.

A backend writes the keys and values of new tokens into the cache, and attends. The engine calls
``prepare`` once, then for each step ``plan`` once per kind of layer, on the host, and ``attend`` in
every layer. Layers that attend to images instead of tokens (Llama 3.2 Vision) and recurrent layers
never reach a backend.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from vlmkit_torch.attention.layer_kind import LayerKind
    from vlmkit_torch.attention.parameters import AttentionParameters
    from vlmkit_torch.attention.step import StepTokens
    from vlmkit_torch.cache.kv_cache import Int8Pools, KVPools
    from vlmkit_torch.devices.uploads import Uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """What a backend can compute; the engine uses it only for models within.

    Attributes:
        devices: types of devices, such as ``cpu`` and ``cuda``; None means any.
        dtypes: names of precisions, such as ``bfloat16``; None means any.
        head_sizes: numbers in a head of keys and of values; None means any.
        unequal_head_sizes: whether values may have other heads than keys.
        sliding_windows: whether a layer may have a window.
        chunked_attention: whether a layer may be cut into sections (Llama 4).
        softcaps: whether scores may have a limit (Gemma 2).
        sinks: whether a head may have a sink, a further score without a value (GPT-OSS).
        image_spans: whether a prompt may have a mask of its own: ranges of tokens that see each
            other both ways (Gemma 3, PaliGemma). See ``NewTokens.views``.
        int8_cache: whether the cache may have 8 bits: ``AttentionCall.pools`` are then an
            ``Int8Pools``.
        fixed_shapes: whether it keeps the rule of ``StepTokens.table_blocks``, so that steps can be
            repeated as CUDA graphs.
        reads_in_place: whether each sequence is read alone, so that padding of ``block_table``
            costs little.
    """

    devices: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    head_sizes: frozenset[int] | None = None
    unequal_head_sizes: bool = False
    sliding_windows: bool = False
    chunked_attention: bool = False
    softcaps: bool = False
    sinks: bool = False
    image_spans: bool = False
    int8_cache: bool = False
    fixed_shapes: bool = False
    reads_in_place: bool = False

    def missing(self, needs: "AttentionNeeds") -> Iterator[str]:
        """Yield what a model needs beyond these, as phrases such as ``attention sinks``."""
        if self.devices is not None and needs.device.type not in self.devices:
            yield f"device {needs.device.type!r}"
        if needs.has_image_spans and not self.image_spans:
            yield "image spans"
        if needs.has_int8_cache and not self.int8_cache:
            yield "an 8-bit cache"
        found: dict[str, None] = {}
        for layer in needs.layers:
            found |= dict.fromkeys(self._missing_of(layer))
        yield from found

    def _missing_of(self, layer: "LayerNeeds") -> Iterator[str]:
        dtype = str(layer.dtype).removeprefix("torch.")
        if self.dtypes is not None and dtype not in self.dtypes:
            yield dtype
        sizes = {layer.head_size, layer.value_head_size}
        if self.head_sizes is not None:
            yield from (f"head size {size}" for size in sorted(sizes - self.head_sizes))
        if len(sizes) > 1 and not self.unequal_head_sizes:
            yield "unequal head sizes"
        if layer.kind.window is not None and not self.sliding_windows:
            yield "sliding windows"
        if layer.kind.section is not None and not self.chunked_attention:
            yield "chunked attention"
        if layer.softcap is not None and not self.softcaps:
            yield "soft caps"
        if layer.has_sinks and not self.sinks:
            yield "attention sinks"


@dataclass(frozen=True, slots=True)
class LayerNeeds:
    """The attention of one layer of a model.

    Attributes:
        index: of the layer in the decoder.
        kind: which earlier tokens its tokens see.
        dtype: of its queries, keys and values.
        num_heads: heads of the queries.
        num_kv_heads: heads of keys and values; divides ``num_heads``.
        head_size: numbers in a head of queries and keys.
        value_head_size: numbers in a head of values.
        scale: of the scores.
        softcap: limit of the scores, or None.
        has_sinks: whether heads have sinks.
    """

    index: int
    kind: "LayerKind"
    dtype: "torch.dtype"
    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int
    scale: float
    softcap: float | None
    has_sinks: bool

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in ``dtype``."""
        numbers = self.num_kv_heads * (self.head_size + self.value_head_size)
        return numbers * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a loaded model, or some of its layers, asks of a backend.

    Attributes:
        device: that computes.
        dtype: of the model.
        block_tokens: tokens in a block (page) of the cache.
        layers: that attend to tokens.
        has_image_spans: whether its prompts may have masks of their own.
        has_int8_cache: whether keys and values are stored in 8 bits (``engine.cache_dtype``).
    """

    device: "torch.device"
    dtype: "torch.dtype"
    block_tokens: int
    layers: tuple[LayerNeeds, ...]
    has_image_spans: bool = False
    has_int8_cache: bool = False


class AttentionCall(NamedTuple):
    """One layer's attention in one step.

    Attributes:
        query: ``[heads, tokens, head]`` of all tokens of the step, rotated.
        key: ``[kv_heads, tokens, head]``, rotated; head ``h`` of the queries reads head
            ``h * kv_heads // heads``.
        value: ``[kv_heads, tokens, value_head]``.
        pools: the layer's keys and values; written by the backend. ``Int8Pools`` only if it states
            ``int8_cache``. New tokens are then read from them, too: ``key`` and ``value`` are not
            rounded yet, and an answer must not depend on the cut of a prompt into chunks.
        parameters: index, kind, scale, soft cap and sinks of the layer.
        step: the tokens.
        plan: what ``plan`` returned for this step and the kind of the layer.
    """

    query: "torch.Tensor"
    key: "torch.Tensor"
    value: "torch.Tensor"
    pools: "KVPools | Int8Pools"
    parameters: "AttentionParameters"
    step: "StepTokens"
    plan: Any


class AttentionBackend(Protocol):
    """Writes keys and values of a step into the cache, and attends over it."""

    @property
    def capabilities(self) -> AttentionCapabilities:
        """What it can compute; constant, and known before ``prepare``."""

    def prepare(self, needs: AttentionNeeds) -> None:
        """Take note of the layers that it may compute; called once, before the first step."""

    def plan(self, step: "StepTokens", kind: "LayerKind", uploads: "Uploads") -> Any:
        """Return what ``attend`` needs of a step in layers of one kind.

        Runs on the host, before the step. Must not wait for the device. Arrays that ``attend``
        reads on the device go there by ``uploads.add``, which returns a tensor that is filled
        later: all arrays of a step are sent in one transfer.

        Args:
            step: the tokens.
            kind: which earlier tokens the tokens of the layer see.
            uploads: carries int64 arrays to the device.
        """

    def attend(self, call: AttentionCall) -> "torch.Tensor":
        """Write ``call.key`` and ``call.value`` into the pools, and attend with ``call.query``.

        Must not wait for the device. Must leave slots of other tokens unchanged, and let the result
        depend on no slot that the token does not see: such slots may hold anything, also NaN.

        Returns:
            ``[tokens, heads, value_head]``, of the dtype of the values.
        """
