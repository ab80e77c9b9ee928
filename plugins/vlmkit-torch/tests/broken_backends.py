"""Attention backends that break one promise each, and the test of the contract that detects it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.attention.step import NewTokens, StepTokens
from vlmkit_torch.cache.kv_cache import Int8Pools, KVPools
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)


class StatesNoCapabilities(SdpaAttention):
    @property
    def capabilities(self) -> Any:
        return {"sinks": True}


class LearnsItsCapabilities(SdpaAttention):
    _sizes: frozenset[int] | None = None

    @property
    def capabilities(self) -> AttentionCapabilities:
        return replace(super().capabilities, head_sizes=self._sizes)

    def prepare(self, needs: AttentionNeeds) -> None:
        super().prepare(needs)
        self._sizes = frozenset(layer.head_size for layer in needs.layers)


class ForgetsFirstTokens(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        window = kind.window or 16
        return super().plan(step, kind._replace(window=window), uploads)


class SeesLaterTokens(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        return super().plan(changed(step, all_visible), kind, uploads)


class PutsChunksFirst(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call).roll(-call.step.num_decodes, 0)


class TakesHeadsInTurn(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        heads, kv_heads = len(call.query), len(call.key)
        order = [i for first in range(kv_heads) for i in range(first, heads, kv_heads)]
        out = super().attend(call._replace(query=call.query[order]))
        return out[:, torch.tensor(order).argsort()]


class StoresRoundedKeys(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call._replace(key=call.key.half().to(call.key.dtype)))


class PadsItsWrites(SdpaAttention):
    """Writes a last, made-up token to the block of zeros."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        call.pools.keys[call.step.zero_slot] = call.key[:, 0]
        return out


class MasksByZero(SdpaAttention):
    """Multiplies what is not visible by zero."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call) + 0 * call.pools.values.sum()


class ScalesQueriesInPlace(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        call.query.mul_(call.parameters.scale)
        return super().attend(call._replace(parameters=replace(call.parameters, scale=1.0)))


class ReadsUploadsEarly(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        class Early:
            def add(self, array: np.ndarray) -> torch.Tensor:
                return uploads.add(array).clone()

        return super().plan(step, kind, Early())  # type: ignore[arg-type]


class TakesTheFirstScale(SdpaAttention):
    """Keeps the scale of the first layer."""

    _scale: float | None = None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self._scale = self._scale or call.parameters.scale
        parameters = replace(call.parameters, scale=self._scale)
        return super().attend(call._replace(parameters=parameters))


class KeepsItsFirstPlan(SdpaAttention):
    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[LayerKind, Any] = {}

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        if kind not in self._plans:
            self._plans[kind] = super().plan(step, kind, uploads)
        return self._plans[kind]


class ReturnsSinglePrecision(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call).float()


class CutsHeads(SdpaAttention):
    """Reads a multiple of eight numbers of a head."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        query = call.query.clone()
        query[..., query.shape[-1] // 8 * 8 :] = 0
        return super().attend(call._replace(query=query))


class ReturnsHeadsOfQueries(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        return out.new_zeros(*out.shape[:2], call.query.shape[-1])


class CountsWindowsWithoutTheToken(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        window = None if kind.window is None else kind.window + 1
        return super().plan(step, kind._replace(window=window), uploads)


class IgnoresSections(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        return super().plan(step, kind._replace(section=None), uploads)


class IgnoresCaps(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call._replace(parameters=replace(call.parameters, softcap=None)))


class IgnoresSinks(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call._replace(parameters=replace(call.parameters, sinks=None)))


class IgnoresImages(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        plain = changed(step, lambda new: NewTokens(new.first, new.slots))
        return super().plan(plain, kind, uploads)


class IgnoresHoles(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        def filled(new: NewTokens) -> NewTokens:
            views = {name: Visibility(v.start, v.stop) for name, v in new.views.items()}
            return NewTokens(new.first, new.slots, views)

        return super().plan(changed(step, filled), kind, uploads)


class AttendsToUnroundedTokens(SdpaAttention):
    """Rounds new tokens of an 8-bit cache for later steps only."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        pools = call.pools
        assert isinstance(pools, Int8Pools)
        pools.write(call.step.write_slots, call.key, call.value)
        everything = slice(0, len(pools.keys))
        exact = KVPools(pools.read_keys(everything), pools.read_values(everything))
        return super().attend(call._replace(pools=exact))


class SharesScalesAmongHeads(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        assert isinstance(call.pools, Int8Pools)
        slots, scales = call.step.write_slots, call.pools.key_scales
        scales[slots] = scales[slots].amax(-1, keepdim=True)
        return out


class PadsToTheLongest(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        return super().plan(replace(step, table_blocks=0), kind, uploads)


class ReadsPaddingOfTables(SdpaAttention):
    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        plan = super().plan(step, kind, uploads)
        if step.has_fixed_shapes:
            for each in plan.decodes:
                each.visible.stop += 1
        return plan


def changed(step: StepTokens, change: Any) -> StepTokens:
    """Return a step whose chunks pass through a function."""
    count = step.num_decodes
    chunks = tuple(map(change, step.sequences[count:]))
    return replace(step, sequences=(*step.sequences[:count], *chunks))


def all_visible(new: NewTokens) -> NewTokens:
    stop = np.full(new.num_tokens, len(new.slots))
    view = Visibility(np.zeros(new.num_tokens, dtype=np.int64), stop)
    return NewTokens(new.first, new.slots, {"full_attention": view})


DETECTED_BY: dict[type[SdpaAttention], str] = {
    StatesNoCapabilities: "capabilities_are_constant",
    LearnsItsCapabilities: "capabilities_are_constant",
    ForgetsFirstTokens: "decoding_sequences_attend_to_their_own_tokens",
    SeesLaterTokens: "chunks_are_causal",
    PutsChunksFirst: "a_step_mixes_decodes_and_chunks",
    TakesHeadsInTurn: "heads_share_keys_in_order",
    StoresRoundedKeys: "new_keys_and_values_are_written",
    PadsItsWrites: "no_other_slot_is_written",
    MasksByZero: "slots_that_no_token_sees_have_no_effect",
    ScalesQueriesInPlace: "queries_keys_and_values_are_only_read",
    ReadsUploadsEarly: "uploads_are_read_after_they_were_sent",
    TakesTheFirstScale: "a_plan_serves_all_layers_of_its_kind",
    KeepsItsFirstPlan: "steps_are_independent",
    ReturnsSinglePrecision: "every_stated_precision_is_computed",
    CutsHeads: "every_stated_head_size_is_computed",
    ReturnsHeadsOfQueries: "values_may_have_other_heads_than_keys",
    CountsWindowsWithoutTheToken: "windows_hide_earlier_tokens",
    IgnoresSections: "sections_hide_earlier_sections",
    IgnoresCaps: "scores_are_capped",
    IgnoresSinks: "sinks_take_weight",
    IgnoresImages: "tokens_of_an_image_see_each_other",
    IgnoresHoles: "a_mask_may_have_holes",
    AttendsToUnroundedTokens: "an_int8_cache_is_read_as_it_was_rounded",
    PadsToTheLongest: "plans_of_equal_shapes_differ_in_arrays_alone",
    ReadsPaddingOfTables: "padding_of_the_block_table_changes_no_row",
    SharesScalesAmongHeads: "an_int8_cache_stores_each_head_with_its_scale",
}
