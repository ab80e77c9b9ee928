"""What every attention backend of vlmkit-torch must do."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.cache.int8 import quantized
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCapabilities,
    AttentionNeeds,
    LayerNeeds,
)
from vlmkit_torch.testing.attention_case import (
    BLOCK_TOKENS,
    AttentionCase,
    LateUploads,
    Part,
    form_of,
    needs_of,
    plain_layer,
    tensors_of,
)

DECODES = tuple(Part(first, 1) for first in (1, BLOCK_TOKENS - 1, BLOCK_TOKENS, 17))
CHUNKS = (Part(0, 1), Part(0, 11), Part(3, 6), Part(BLOCK_TOKENS, 2 * BLOCK_TOKENS))
TABLE_BLOCKS = 16  # more than sequences need, and a power of two
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
HALF_TOLERANCE = 3e-2


class TorchAttentionContract:
    """Inherit it, override :meth:`make`, and run pytest.

    Attributes:
        device: on which the backend is tried; the first of those that it states by default.
        atol: how far numbers may lie apart; derived from the precision by default.
    """

    device: str = ""
    atol: float | None = None

    def make(self) -> AttentionBackend:
        """Return a new backend that is not prepared yet."""
        raise NotImplementedError

    def test_capabilities_are_constant(self) -> None:
        """They are read before ``prepare``, and stay the same after it."""
        backend = self.make()
        before = backend.capabilities
        assert isinstance(before, AttentionCapabilities)
        backend.prepare(self._needs(self._layer()))
        assert backend.capabilities == before

    def test_decoding_sequences_attend_to_their_own_tokens(self) -> None:
        """Each new token sees itself and all earlier tokens of its sequence."""
        self._agrees(self._layer(), DECODES, len(DECODES))

    def test_chunks_are_causal(self) -> None:
        """Chunks start at any token of a sequence, and no token sees a later one."""
        self._agrees(self._layer(), CHUNKS)

    def test_a_step_mixes_decodes_and_chunks(self) -> None:
        """Decodes come first in the flat step."""
        self._agrees(self._layer(), (*DECODES, *CHUNKS), len(DECODES))

    def test_heads_share_keys_in_order(self) -> None:
        """Head ``h`` of the queries reads head ``h * kv_heads // heads``."""
        for heads, kv_heads in ((4, 1), (4, 4), (6, 2), (6, 3)):
            layer = replace(self._layer(), num_heads=heads, num_kv_heads=kv_heads)
            self._agrees(layer, (*DECODES[:2], *CHUNKS[1:3]), 2)

    def test_new_keys_and_values_are_written(self) -> None:
        """Each goes to its slot, unchanged."""
        case = self._ran(self._layer(), (*DECODES, *CHUNKS), len(DECODES))
        for pool, new in zip(tensors_of(case.pools), (case.key, case.value), strict=True):
            assert torch.equal(pool[case.new_slots], new.transpose(0, 1))

    def test_no_other_slot_is_written(self) -> None:
        """Other sequences have them; the block of zeros stays zero."""
        arguments = (self._layer(), (*DECODES, *CHUNKS), len(DECODES))
        case, before = self._ran(*arguments), self._case(*arguments).pools
        others = [slot for slot in range(len(before.keys)) if slot not in set(case.new_slots)]
        for pool, earlier in zip(tensors_of(case.pools), tensors_of(before), strict=True):
            assert torch.equal(pool[others], earlier[others])

    def test_slots_that_no_token_sees_have_no_effect(self) -> None:
        """They may hold values that are not finite, also in the blocks of a sequence."""
        self._agrees(self._layer(), (*DECODES, *CHUNKS), len(DECODES), stale=torch.nan)

    def test_queries_keys_and_values_are_only_read(self) -> None:
        """The model may use them again."""
        case = self._case(self._layer(), (*DECODES, *CHUNKS), len(DECODES))
        backend = self._prepared(case.layer)
        plan = backend.plan(case.tokens, case.layer.kind, case.uploads)
        call = case.call(plan)
        before = [each.clone() for each in (call.query, call.key, call.value)]
        backend.attend(call)
        for old, new in zip(before, (call.query, call.key, call.value), strict=True):
            assert torch.equal(old, new)

    def test_uploads_are_read_after_they_were_sent(self) -> None:
        """A plan's arrays reach the device after ``plan`` returned, in one transfer."""
        layer, device = self._layer(), self._device()
        parts = (*DECODES, *CHUNKS)
        case = AttentionCase(layer, parts, device, num_decodes=4, uploads=LateUploads(device))
        self._compare(case.run(self._prepared(layer)), case)

    def test_a_plan_serves_all_layers_of_its_kind(self) -> None:
        """Layers of one kind may differ in heads, sizes of heads and scale."""
        layers = [self._layer(), replace(self._layer(), num_heads=6, num_kv_heads=3, scale=0.1)]
        backend = self.make()
        backend.prepare(self._needs(*layers))
        first, second = (self._case(layer, (*DECODES, *CHUNKS), 4) for layer in layers)
        plan = backend.plan(first.tokens, first.layer.kind, first.uploads)
        for case in (first, second):
            self._compare(backend.attend(case.call(plan)), case)

    def test_steps_are_independent(self) -> None:
        """A backend computes many steps of changing sizes, and again smaller ones."""
        layer = self._layer()
        backend = self._prepared(layer)
        steps: list[tuple[Seq[Part], int]] = [
            (DECODES[:1], 1),
            ((*DECODES, *CHUNKS), 4),
            (CHUNKS[:1], 0),
            (DECODES[2:], 2),
        ]
        for seed, (parts, num_decodes) in enumerate(steps):
            case = AttentionCase(layer, parts, self._device(), num_decodes=num_decodes, seed=seed)
            self._compare(case.run(backend), case)

    def test_every_stated_precision_is_computed(self) -> None:
        """The result has the precision of the values."""
        stated = self.make().capabilities.dtypes or {"float32", "bfloat16"}
        for name in sorted(stated):
            layer = replace(self._layer(), dtype=getattr(torch, name))
            self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES))

    def test_every_stated_head_size_is_computed(self) -> None:
        """With no stated size, any size is one."""
        for size in sorted(self.make().capabilities.head_sizes or {8, 20, 64, 128}):
            layer = replace(self._layer(), head_size=size, value_head_size=size, scale=0.1)
            self._agrees(layer, (DECODES[3], CHUNKS[2]), 1)

    # What a backend may state.

    def test_values_may_have_other_heads_than_keys(self) -> None:
        """If it states ``unequal_head_sizes``."""
        self._needs_capability("unequal_head_sizes")
        layer = replace(self._layer(), value_head_size=self._other_size())
        self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES))

    def test_windows_hide_earlier_tokens(self) -> None:
        """If it states ``sliding_windows``; a token in its window sees itself."""
        self._needs_capability("sliding_windows")
        for window in (1, 3, BLOCK_TOKENS, 100):
            kind = LayerKind("sliding_attention", window=window)
            layer = replace(self._layer(), kind=kind)
            self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES), stale=torch.nan)

    def test_sections_hide_earlier_sections(self) -> None:
        """If it states ``chunked_attention``."""
        self._needs_capability("chunked_attention")
        layer = replace(self._layer(), kind=LayerKind("chunked_attention", section=5))
        self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES))

    def test_scores_are_capped(self) -> None:
        """If it states ``softcaps``; the cap applies to scaled scores."""
        self._needs_capability("softcaps")
        layer = replace(self._layer(), softcap=0.5)
        self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES))

    def test_sinks_take_weight(self) -> None:
        """If it states ``sinks``; a sink is a score that is neither scaled nor capped."""
        self._needs_capability("sinks")
        layer = replace(self._layer(), has_sinks=True)
        self._agrees(layer, (*DECODES, *CHUNKS), len(DECODES))

    def test_tokens_of_an_image_see_each_other(self) -> None:
        """If it states ``image_spans``; each kind of layer has its own ranges."""
        self._needs_capability("image_spans")
        index = np.arange(10)
        stop = np.where((index >= 2) & (index < 7), 7, index + 1)
        views = {"full_attention": Visibility(np.zeros(10, dtype=np.int64), stop)}
        self._agrees(self._layer(), (*DECODES, Part(0, 10, views)), len(DECODES))
        late = {name: view.cut(2, 10) for name, view in views.items()}
        self._agrees(self._layer(), (*DECODES, Part(2, 8, late)), len(DECODES))

    def test_a_mask_may_have_holes(self) -> None:
        """If it states ``image_spans``; then ``dense`` says more than the range."""
        self._needs_capability("image_spans")
        dense = torch.ones(9, 9, dtype=torch.bool).tril()
        dense[4:, 1:3] = False
        stop = np.arange(9) + 1
        view = Visibility(np.zeros(9, dtype=np.int64), stop, dense.to(self._device()))
        self._agrees(self._layer(), (*DECODES, Part(0, 9, {"full_attention": view})), 4)

    def test_an_int8_cache_is_read_as_it_was_rounded(self) -> None:
        """If it states ``int8_cache``; also of the tokens of the step, with NaN elsewhere."""
        self._needs_capability("int8_cache")
        layer = self._layer()
        for parts, num_decodes in ((DECODES, 4), (CHUNKS, 0), ((*DECODES, *CHUNKS), 4)):
            self._compare(*self._ran_int8(layer, parts, num_decodes, stale=torch.nan))

    def test_an_int8_cache_stores_each_head_with_its_scale(self) -> None:
        """If it states ``int8_cache``; the integers of a token depend on no other token."""
        self._needs_capability("int8_cache")
        arguments = (self._layer(), (*DECODES, *CHUNKS), len(DECODES))
        _, case = self._ran_int8(*arguments)
        (keys, key_scales), (values, value_scales) = map(quantized, (case.key, case.value))
        wanted = (keys, values, key_scales, value_scales)
        before = tensors_of(self._case(*arguments, has_int8_cache=True).pools)
        for pool, new, earlier in zip(tensors_of(case.pools), wanted, before, strict=True):
            assert torch.equal(pool[case.new_slots], new.transpose(0, 1))
            pool[case.new_slots] = earlier[case.new_slots]
            assert torch.equal(pool, earlier), "no other slot is written"

    def test_padding_of_the_block_table_changes_no_row(self) -> None:
        """If it states ``fixed_shapes``; rows of padding have one token."""
        self._needs_capability("fixed_shapes")
        parts = (*DECODES, Part(0, 1), Part(0, 1))
        for kind in self._kinds():
            layer = replace(self._layer(), kind=kind)
            case = self._case(layer, parts, len(parts), stale=torch.nan)
            case.widen(TABLE_BLOCKS)
            self._compare(case.run(self._prepared(case.layer)), case)

    def test_plans_of_equal_shapes_differ_in_arrays_alone(self) -> None:
        """If it states ``fixed_shapes``; a CUDA graph repeats all other values of the first."""
        self._needs_capability("fixed_shapes")
        lengths = ((1, 2, 3), (40, 9, 17), (63, 60, 61))
        for kind in self._kinds():
            backend = self._prepared(replace(self._layer(), kind=kind))
            forms = []
            for firsts in lengths:
                parts = [Part(first, 1) for first in firsts]
                case = self._case(replace(self._layer(), kind=kind), parts, len(parts))
                case.widen(TABLE_BLOCKS)
                forms.append(form_of(backend.plan(case.tokens, kind, case.uploads)))
            assert all(form == forms[0] for form in forms), "no shape and no number may differ"

    # Helpers.

    def _kinds(self) -> list[LayerKind]:
        """Return the kinds of layers that it supports."""
        stated = self.make().capabilities
        kinds = [LayerKind("full_attention")]
        if stated.sliding_windows:
            kinds.append(LayerKind("sliding_attention", window=6))
        if stated.chunked_attention:
            kinds.append(LayerKind("chunked_attention", section=5))
        return kinds

    def _agrees(
        self, layer: LayerNeeds, parts: Seq[Part], num_decodes: int = 0, stale: float = 7.0
    ) -> None:
        """Compare a step with attention that is written out."""
        case = self._case(layer, parts, num_decodes, stale)
        has_spans = any(part.views for part in parts)
        self._compare(case.run(self._prepared(layer, has_image_spans=has_spans)), case)

    def _ran(self, layer: LayerNeeds, parts: Seq[Part], num_decodes: int) -> AttentionCase:
        case = self._case(layer, parts, num_decodes)
        case.run(self._prepared(layer))
        return case

    def _ran_int8(
        self, layer: LayerNeeds, parts: Seq[Part], num_decodes: int, stale: float = 7.0
    ) -> tuple[torch.Tensor, AttentionCase]:
        """Return the result of a step over an 8-bit cache."""
        case = self._case(layer, parts, num_decodes, stale, has_int8_cache=True)
        backend = self.make()
        backend.prepare(needs_of([layer], self._device(), has_int8_cache=True))
        return case.run(backend), case

    def _case(
        self,
        layer: LayerNeeds,
        parts: Seq[Part],
        num_decodes: int = 0,
        stale: float = 7.0,
        *,
        has_int8_cache: bool = False,
    ) -> AttentionCase:
        return AttentionCase(
            layer,
            parts,
            self._device(),
            num_decodes=num_decodes,
            stale=stale,
            has_int8_cache=has_int8_cache,
        )

    def _compare(self, found: object, case: AttentionCase) -> None:
        wanted = case.written_out()
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape) == (case.layer.dtype, wanted.shape)
        atol = self.atol or TOLERANCES.get(found.dtype, HALF_TOLERANCE)
        torch.testing.assert_close(found.double(), wanted, atol=atol, rtol=0)

    def _prepared(self, layer: LayerNeeds, *, has_image_spans: bool = False) -> AttentionBackend:
        backend = self.make()
        backend.prepare(self._needs(layer, has_image_spans=has_image_spans))
        return backend

    def _needs(self, *layers: LayerNeeds, has_image_spans: bool = False) -> AttentionNeeds:
        return needs_of(layers, self._device(), has_image_spans=has_image_spans)

    def _layer(self) -> LayerNeeds:
        stated = self.make().capabilities
        dtypes = stated.dtypes or {"float32"}
        name = "float32" if "float32" in dtypes else min(dtypes)
        return plain_layer(getattr(torch, name), min(stated.head_sizes or {8}))

    def _other_size(self) -> int:
        stated = self.make().capabilities.head_sizes
        if stated is not None and len(stated) == 1:
            pytest.skip("it states a single size of heads")
        return 6 if stated is None else max(stated)

    def _device(self) -> torch.device:
        stated = self.make().capabilities.devices
        name = self.device or ("cpu" if stated is None or "cpu" in stated else min(stated))
        try:
            return torch.empty(1, device=name).device
        except (RuntimeError, AssertionError) as error:
            pytest.skip(f"device {name!r} is not there: {type(error).__name__}")

    def _needs_capability(self, name: str) -> None:
        if not getattr(self.make().capabilities, name):
            pytest.skip(f"it does not state {name!r}")
