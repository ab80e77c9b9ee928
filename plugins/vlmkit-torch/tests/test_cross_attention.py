"""Cross-attention on the host: tokens that attend to images, and the cache of image rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan
from vlmkit_torch.cross_attention.image_cache import ImageCache
from vlmkit_torch.cross_attention.spec import TO_THE_END, AttendingSpan, CrossAttentionSpec, runs
from vlmkit_torch.prompts.layout import Layout

pytestmark = pytest.mark.torch

IMAGE = 9
SPEC = CrossAttentionSpec(frozenset({1}), IMAGE, tile_rows=5, max_tiles=4)


def slot(start: int, num_tiles: int = 1, digest: bytes = b"") -> MediaSlot:
    tiles = np.array([[[1] * num_tiles + [0] * (4 - num_tiles)]])
    return MediaSlot(start, start + 1, digest, {"aspect_ratio_mask": tiles}, 1)


def prompt(ids: list[int]) -> Prompt:
    return Prompt(tuple(ids), tuple(slot(i) for i, token in enumerate(ids) if token == IMAGE))


@given(st.lists(st.sampled_from([1, 2, IMAGE]), min_size=1, max_size=24), st.data())
def test_tokens_attend_to_the_images_of_the_processors_mask_in_any_chunks(
    ids: list[int], data: st.DataObject
) -> None:
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
    )

    made = prompt(ids)
    num = len(made.media)
    assume(num)
    mask = convert_sparse_cross_attention_mask_to_dense(
        [SPEC.ranges(made)], [[1] * num], max_num_tiles=1, length=len(ids)
    )[0, :, :, 0]
    cuts = sorted({0, len(ids), *data.draw(st.sets(st.integers(0, len(ids))))})
    found: list[tuple[int, ...]] = []
    for start, stop in pairwise(cuts):
        for first, end, seen in runs(SPEC.attending_spans(made), start, stop):
            found += [seen] * (end - first)

    assert found == [tuple(np.flatnonzero(row)) for row in mask]
    answer = runs(SPEC.attending_spans(made), len(ids), len(ids) + 3)
    assert [seen for *_, seen in answer] == found[-1:], "an answer sees what the last token sees"


@given(st.lists(st.sampled_from([1, IMAGE]), min_size=1, max_size=12), st.integers(1, 12))
def test_attention_to_images_does_not_depend_on_later_tokens(ids: list[int], count: int) -> None:
    def looks(part: list[int]) -> list[tuple[int, ...]]:
        spans = SPEC.attending_spans(prompt(part))
        return [s for a, b, s in runs(spans, 0, len(part)) for _ in range(b - a)]

    assert looks(ids[:count]) == looks(ids)[:count]


def test_an_image_has_the_rows_of_its_own_tiles() -> None:
    assert [SPEC.num_rows(slot(0, tiles)) for tiles in (1, 3, 4)] == [5, 15, 20]
    assert SPEC.num_rows(MediaSlot(0, 1, b"", {}, 1)) == SPEC.max_image_rows == 20


def test_image_tokens_without_an_image_are_refused() -> None:
    with pytest.raises(EngineError, match="not where its images are"):
        SPEC.attending_spans(Prompt((IMAGE, 1, IMAGE), (slot(0),)))


@dataclass(eq=False)
class CachedSequence:
    """The attributes of a sequence that the cache reads."""

    prompt: Prompt
    scope: bytes
    plan: PromptPlan = field(init=False)

    def __post_init__(self) -> None:
        spans = SPEC.attending_spans(self.prompt)
        self.plan = PromptPlan(state=Layout(None, 0, attending_spans=spans))


CONTENTS: Mapping[bytes, int] = {b"a": 1, b"b": 2, b"c": 4, b"d": 1}
MAX_ROWS = 30


class Images(RuleBasedStateMachine):
    """Random admissions, computations and releases of sequences with images."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = ImageCache(MAX_ROWS, keeps_unused=True)
        self.admitted: dict[CachedSequence, set[tuple[bytes, bytes]]] = {}

    @rule(
        target=sequences,
        shown=st.lists(st.sampled_from(sorted(CONTENTS)), max_size=3),
        scope=st.sampled_from([b"x", b"y"]),
        gap=st.integers(0, 2),
        share=st.floats(0, 1),
    )
    def admit(self, shown: list[bytes], scope: bytes, gap: int, share: float) -> Any:
        ids, slots = [1], []
        for digest in shown:
            slots.append(slot(len(ids), CONTENTS[digest], digest))
            ids += [IMAGE] + [1] * gap
        sequence = CachedSequence(Prompt((*ids, 1), tuple(slots)), scope)
        spans = sequence.plan.state.attending_spans
        num_cached = self.cache.usable_tokens(sequence, int(share * len(sequence.prompt)))
        assert self.cache.usable_tokens(sequence, num_cached) == num_cached
        for index, span in enumerate(spans):
            if span.start < num_cached < span.stop:
                assert self.cache._is_cached(sequence, index), "a token would attend to nothing"
        keys = {(scope, slots[i].digest) for i, span in enumerate(spans) if span.stop > num_cached}
        others = set().union(*self.admitted.values())
        rows = sum(5 * CONTENTS[digest] for _, digest in keys | others)
        assert self.cache.admit(sequence, num_cached) == (rows <= MAX_ROWS or not keys)
        if rows > MAX_ROWS and keys:
            return sequence
        self.admitted[sequence] = keys
        return sequence

    @rule(sequence=sequences)
    def compute(self, sequence: CachedSequence) -> None:
        for index, span in enumerate(sequence.plan.state.attending_spans):
            if sequence in self.admitted and index in self.cache._in_use.get(sequence, {}):
                cached_image = self.cache.image(sequence, index)
                assert cached_image.num_rows == span.num_rows
                cached_image.is_complete = True

    @rule(sequence=consumes(sequences), is_finite=st.booleans())
    def release(self, sequence: CachedSequence, is_finite: bool) -> None:
        self.cache.release(sequence, is_finite=is_finite)
        self.admitted.pop(sequence, None)

    @invariant()
    def counts_are_right(self) -> None:
        held = set().union(*self.admitted.values())
        images = self.cache._images
        assert {key for key, image in images.items() if image.num_users} == held
        assert set(self.cache._unused) == set(images) - held
        assert all(images[key].is_complete for key in self.cache._unused)
        assert self.cache.num_rows <= MAX_ROWS
        assert self.cache.num_used_rows == sum(5 * CONTENTS[digest] for _, digest in held)
        assert self.cache.num_users == sum(bool(keys) for keys in self.admitted.values())


TestImages = Images.TestCase


def test_a_non_finite_image_is_dropped_and_others_are_evicted_in_order_of_use() -> None:
    cache = ImageCache(10, keeps_unused=True)
    sequences = [
        CachedSequence(Prompt((IMAGE, 1), (slot(0, 1, digest),)), b"")
        for digest in (b"a", b"d", b"e")
    ]
    for sequence, is_finite in zip(sequences, (True, True, False), strict=True):
        assert cache.admit(sequence, 0)
        cache.image(sequence, 0).is_complete = True
        cache.release(sequence, is_finite=is_finite)

    assert [digest for _, digest in cache._unused] == [b"d"], "the third one pushed the first out"
    assert sequences[0].plan.state.attending_spans == (AttendingSpan(0, TO_THE_END, 5),)
